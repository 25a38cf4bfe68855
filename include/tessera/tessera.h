/** @file tessera.h  Includes all public headers; a program needs no other. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_H
#define TESSERA_H

#include "core.h"
#include "check.h"
#include "dispatch.h"
#include "device.h"
#include "backend.h"
#include "kernel.h"
#include "ops.h"
#include "autograd.h"
#include "gradient.h"
#include "autocast.h"
#include "layers.h"
#include "io.h"
#include "nn.h"
#include "report.h"
#include "trace.h"
#include "compile.h"
#include "program.h"
#include "profile.h"

#endif
