/**
 * @file recipes.h
 * Recipes (dispatch/recipe.h) of the functions in vmath.h and vmath_real.h, for f32. Each text has
 * the operations, order and constants of the function whose name it has.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_RECIPES_H
#define TS_BACKENDS_CPU_RECIPES_H

/* Names in these texts: x the argument of an exponential, q the exponent, r the rest. */
#define RECIPE_LOG2E "0x1.71547652b82fep+0"
/* vf_exp_reduce() of x and q, to r */
#define RECIPE_EXP_REDUCE "q -0x1.7f7d1cp-20 q -0x1.62e4p-1 x fma fma "
/* vf_exp_reduced() of r and q */
#define RECIPE_EXP_REDUCED                                                               \
    "=r r r mul 0.00138145592 r 0.0083687352 fma r 0.041668389 fma r 0.166665211 fma "   \
    "r 0.49999994 fma r fma 1 add q ldexp "
/* vf_exp() of the last value */
#define RECIPE_EXP                                                                       \
    "=x -104 89 x min max =x x " RECIPE_LOG2E " mul rint =q " RECIPE_EXP_REDUCE          \
    RECIPE_EXP_REDUCED
/* y: last value. e = vf_exp(-|y|), for the two halves of a sigmoid */
#define RECIPE_EXP_FALL "abs neg " RECIPE_EXP "=e "
#define RECIPE_SIGMOID "a " RECIPE_EXP_FALL "a 0 lt e 1 sel e 1 add div"
#define RECIPE_SILU "a " RECIPE_EXP_FALL "-1000 a max a 0 lt e 1 sel mul e 1 add div"
#define RECIPE_TANH                                                                      \
    "10 a abs min 2 mul =x x " RECIPE_LOG2E " mul rint =q " RECIPE_EXP_REDUCE            \
    "=r r r mul 0.000198458787 r 0.00139406545 fma r 0.00833338965 fma "                 \
    "r 0.0416663624 fma r 0.166666657 fma r 0.5 fma r fma =e "                           \
    "q toint #7f iadd #17 shl =s s e s 1 sub fma =y y y 2 add div a copysign"
#define RECIPE_GELU_TANH                                                                 \
    "a a a mul 0.07135481627260024878 1.59576912160573071176 fma mul " RECIPE_EXP_FALL   \
    "-15 a max a 0 lt e 1 sel mul e 1 add div"
#define RECIPE_GELU                                                                      \
    "15 a abs min =t t #fffff000 band =k "                                               \
    "-104 k k mul -0.5 mul max =x t k sub t k add mul -0.5 mul =w "                      \
    "x w add " RECIPE_LOG2E " mul rint =q " RECIPE_EXP_REDUCE "w add "                   \
    RECIPE_EXP_REDUCED "=e 1 t 0.5 1 fma div =u u 0.625 sub =r "                         \
    "0.0681116283 r 0.0170000996 fma r -0.0718368292 fma r 0.0363606066 fma "            \
    "r 0.0226599313 fma r -0.0702407882 fma r 0.0538239144 fma r 0.0469938666 fma "      \
    "r -0.134642199 fma r 0.00401609577 fma r 0.339008003 fma r 0.378244728 fma =g "     \
    "e u mul g mul =w -15 a max a 0 lt w 1 w sub sel mul"

#endif
