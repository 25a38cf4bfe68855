/**
 * @file libtorch.cpp  The calls of bench_dispatch.c in PyTorch's C++ library: nanoseconds per call,
 * the fastest of 2,000 batches of about 20 µs each. `compare.py --suite host` compiles and runs it.
 *
 *     libtorch        prints the lines case<TAB>value<TAB>unit
 */
// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

using torch::Tensor;
namespace nn = torch::nn;

static double now()
{
    using namespace std::chrono;
    return (double)duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

template <class Run> static void report(const char *name, Run &&run)
{
    for (int i = 0; i < 2000; i++)
        run();
    double begin = now();
    for (int i = 0; i < 200; i++)
        run();
    int batch = (int)(20000 / ((now() - begin) / 200)) + 1;
    double best = 1e18;
    for (int k = 0; k < 2000; k++) {
        begin = now();
        for (int i = 0; i < batch; i++)
            run();
        best = std::min(best, (now() - begin) / batch);
    }
    std::printf("libtorch.cpp_%s\t%.1f\tns\n", name, best);
    std::fflush(stdout);
}

int main()
{
    at::set_num_threads(1);
    torch::manual_seed(1);
    Tensor a = torch::ones({1}), b = torch::ones({1}), out = torch::ones({1});
    Tensor w = torch::ones({1}, torch::requires_grad());
    Tensor m = torch::ones({8, 8}), n = torch::ones({8, 8});
    Tensor x = torch::ones({8, 16}), y = torch::ones({8, 4});
    nn::Sequential mlp(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 4));
    torch::optim::SGD sgd(mlp->parameters(), 0.01);

    report("add", [&] { torch::add(a, b); });
    report("add_out", [&] { torch::add_out(out, a, b); });
    report("add_", [&] { out.add_(b); });
    report("empty", [&] { torch::empty({1}); });
    report("view", [&] { a.view({1, 1}); });
    report("relu", [&] { torch::relu(a); });
    report("mm8", [&] { torch::mm(m, n); });
    {
        torch::InferenceMode inference;
        Tensor c = torch::ones({1}), d = torch::ones({1});
        report("add_inference", [&] { torch::add(c, d); });
    }
    report("add_grad", [&] { torch::add(w, b); });
    report("add_fwd_bwd", [&] {
        torch::add(w, b).backward();
        w.mutable_grad().reset();
    });
    report("mlp_step", [&] {
        torch::mse_loss(mlp->forward(x), y).backward();
        sgd.step();
        sgd.zero_grad();
    });
}
