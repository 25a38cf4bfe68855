/* A program built with the installed library: ops, gradients, a network, its own op and layer. */
/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

static int calls;

static ts_status count(ts_frame *f)
{
    calls++;
    return ts_redispatch(f);
}

static ts_status train(double *first, double *last)
{
    ts_module *net = ts_linear_new(3, 1, true);
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.1);
    ts_optimizer *o = ts_optimizer_for(net, TS_SGD, &opts);
    ts_status status = ts_status_of_pointer(o);
    for (int step = 0; step < 50 && status == TS_OK; step++) {
        TS_SCOPE;
        ts_tensor *x = ts_uniform(TS_SIZES(16, 3), -1, 1, TS_F32);
        ts_tensor *loss = ts_mse_loss(ts_forward(net, x), ts_sum_dim(x, 1, true));
        status = ts_backward(loss);
        if (status == TS_OK)
            status = ts_optimizer_step(o);
        ts_optimizer_zero_grad(o);
        if (status == TS_OK)
            status = ts_item(loss, step ? last : first);
    }
    ts_optimizer_free(o);
    ts_module_free(net);
    return status;
}

int main(void)
{
    TS_SCOPE;
    ts_key key;
    double first = 0, last = 0;
    if (ts_register_layer("COUNT", "AUTOGRAD", &key) != TS_OK ||
        ts_register_kernel("linear", key, count, ts_op_schema(ts_op_by_name("linear")), NULL) !=
            TS_OK ||
        ts_layer_enable(key, true) != TS_OK || train(&first, &last) != TS_OK) {
        ts_error_print();
        return EXIT_FAILURE;
    }
    printf("tessera %s: loss %.4f to %.4f in %d calls\n", ts_version_string(), first, last, calls);
    return calls == 50 && last < 0.1 * first && strcmp(ts_version_string(), WANTED_VERSION) == 0
               ? EXIT_SUCCESS
               : EXIT_FAILURE;
}
