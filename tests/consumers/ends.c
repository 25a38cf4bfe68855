/* A program that trains, forks while the library's threads are idle, and calls exit() in parent and
 * child. Exit handlers that were registered before and after the first call of the library also
 * compute. */
/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

static int handlers, wanted;

/** A step of a network whose products are large enough for all threads. */
static ts_status train(void)
{
    TS_SCOPE;
    static ts_module *net;
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    double first = 0, last = 0;
    if (!net)
        TS_TRY(net = ts_linear_new(256, 256, true));
    ts_optimizer *o = ts_optimizer_for(net, TS_ADAMW, &opts);
    TS_TRY(o);
    ts_status status = TS_OK;
    for (int step = 0; step < 10 && status == TS_OK; step++) {
        TS_SCOPE;
        ts_tensor *x = ts_uniform(TS_SIZES(512, 256), -1, 1, TS_F32);
        ts_tensor *loss = ts_mse_loss(ts_forward(net, x), ts_relu(x));
        status = ts_backward(loss);
        if (status == TS_OK)
            status = ts_optimizer_step(o);
        ts_optimizer_zero_grad(o);
        if (status == TS_OK)
            status = ts_item(loss, step ? &last : &first);
    }
    ts_optimizer_free(o);
    return status == TS_OK && last >= first
               ? ts_error_set(TS_ERR_VALUE, "the loss went from %g to %g", first, last)
               : status;
}

static void at_end(void)
{
    if (train() != TS_OK) {
        ts_error_print();
        _exit(3);
    }
    if (++handlers == wanted)
        _exit(0);
}

int main(void)
{
    int status;
    alarm(60);
    atexit(at_end);
    if (train() != TS_OK) {
        ts_error_print();
        return 1;
    }
    atexit(at_end);
    wanted = 2;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        if (train() != TS_OK) {
            ts_error_print();
            _exit(2);
        }
        exit(4); /* the last handler exits with 0 */
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the child ended with status %d\n", status);
        return 1;
    }
    return 4;
}
