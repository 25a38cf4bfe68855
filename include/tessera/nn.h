/** @file nn.h  Includes the headers of nn/: modules, layers, optimizers, schedules, data. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_H
#define TESSERA_NN_H

#include "nn/amp.h"
#include "nn/dataset.h"
#include "nn/ema.h"
#include "nn/image.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/loader.h"
#include "nn/module.h"
#include "nn/optimizer.h"
#include "nn/run.h"
#include "nn/training.h"

#endif
