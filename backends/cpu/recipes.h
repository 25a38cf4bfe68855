/**
 * @file recipes.h
 * Recipes of functions in vmath.h, vmath_d.h and vmath_real.h: their arithmetic as text in postfix
 * notation (dispatch/recipe.h), from which fused groups make machine code. Each text has the
 * operations, order and constants of the function that its name or its comment states, so the bits
 * are the same. activation.c and unary.c include this file.
 *
 * T in RECIPE_EXP(T) is F for f32 or D for f64; RECIPE_BOTH(NAME) defines both texts of a function.
 * A comment names the function without vf_ or vd_, and its arguments: named values, or the last
 * value of the text before.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_RECIPES_H
#define TS_BACKENDS_CPU_RECIPES_H

#define RECIPE_BOTH(name) .f32 = RECIPE_##name(F), .f64 = RECIPE_##name(D)

/* ------------------------------------------------------------------------ exponentials ---- */

/* Names in these texts: x is the argument of an exponential, q the exponent n, r the reduced
 * argument x - n ln 2 (for exp2, x - n). */
#define RECIPE_LOG2E "0x1.71547652b82fep+0"
/* exp_reduce() of x and q */
#define RECIPE_REDUCE_F "q -0x1.7f7d1cp-20 q -0x1.62e4p-1 x fma fma "
#define RECIPE_REDUCE_D "q -0x1.3de6af278ece6p-42 q -0x1.62e42fefa3p-1 x fma fma "
/* exp_poly(), expm1_poly(), exp2_poly() of r */
#define RECIPE_EXP_POLY_F                                                                    \
    "0.00138145592 r 0.0083687352 fma r 0.041668389 fma r 0.166665211 fma r 0.49999994 fma "
#define RECIPE_EXP_POLY_D                                                                    \
    "2.5000027435882775e-08 r 2.7630286644853791e-07 fma r 2.7557586676062859e-06 fma "      \
    "r 2.4801493000213903e-05 fma r 0.00019841269506027924 fma r 0.001388888894371597 fma "  \
    "r 0.00833333333349481 fma r 0.041666666666529871 fma r 0.16666666666666413 fma "        \
    "r 0.50000000000000111 fma "
#define RECIPE_EXPM1_POLY_F                                                                  \
    "0.000198458787 r 0.00139406545 fma r 0.00833338965 fma r 0.0416663624 fma "             \
    "r 0.166666657 fma r 0.5 fma "
#define RECIPE_EXPM1_POLY_D                                                                  \
    "2.0875332294065263e-09 r 2.5109009099220903e-08 fma r 2.755740272018602e-07 fma "       \
    "r 2.7557244294626245e-06 fma r 2.4801587172347316e-05 fma "                             \
    "r 0.00019841269886037229 fma r 0.001388888888896252 fma r 0.0083333333333216672 fma "   \
    "r 0.041666666666666512 fma r 0.16666666666666677 fma r 0.5 fma "
#define RECIPE_EXP2_POLY_F                                                                   \
    "0.000153533634 r 0.00133988739 fma r 0.00961843692 fma r 0.0555033237 fma "             \
    "r 0.240226477 fma r 0.693147182 fma "
#define RECIPE_EXP2_POLY_D                                                                   \
    "2.5625422887287152e-11 r 4.4565705107098272e-10 fma r 7.0549744770552931e-09 fma "      \
    "r 1.0178051941929791e-07 fma r 1.3215486594914396e-06 fma r 1.5252733854318436e-05 fma " \
    "r 0.0001540353039364072 fma r 0.0013333558146392691 fma r 0.0096181291076283294 fma "   \
    "r 0.055504108664821687 fma r 0.24022650695910072 fma r 0.69314718055994529 fma "
/* power() of the last value; the constant of f64 is 0x1.8p52 + 1023 */
#define RECIPE_POWER_F "toint #7f iadd #17 shl "
#define RECIPE_POWER_D "6755399441056767 add #34 shl "
/* ldexp_fast() of the last value and q */
#define RECIPE_SCALE_F "q ldexp "
#define RECIPE_SCALE_D                                                                       \
    "q 0.5 mul rint =p p " RECIPE_POWER_D "mul q p sub " RECIPE_POWER_D "mul "
/* exp_reduced() of the last value and q */
#define RECIPE_REDUCED(T) "=r r r mul " RECIPE_EXP_POLY_##T "r fma 1 add " RECIPE_SCALE_##T
#define RECIPE_EXP_CLAMP_F "=x -104 89 x min max =x "
#define RECIPE_EXP_CLAMP_D "=x -746 710 x min max =x "
#define RECIPE_EXPONENT "x " RECIPE_LOG2E " mul rint =q "
/* exp() of the last value */
#define RECIPE_EXP_OF(T)                                                                     \
    RECIPE_EXP_CLAMP_##T RECIPE_EXPONENT RECIPE_REDUCE_##T RECIPE_REDUCED(T)
/* expm1_rest() of x, as the named value e */
#define RECIPE_EXPM1_REST(T)                                                                 \
    RECIPE_EXPONENT RECIPE_REDUCE_##T "=r r r mul " RECIPE_EXPM1_POLY_##T "r fma =e "
#define RECIPE_EXPM1_CLAMP_F "=v -18 89 v min max =x "
#define RECIPE_EXPM1_CLAMP_D "=v -40 710 v min max =x "
/* expm1() of the last value */
#define RECIPE_EXPM1_OF(T)                                                                   \
    RECIPE_EXPM1_CLAMP_##T RECIPE_EXPM1_REST(T) "q 1 sub " RECIPE_POWER_##T                  \
    "=s s e s 0.5 sub fma 2 mul =y q 0 eq e y sel v copysign "

#define RECIPE_EXP(T) "a " RECIPE_EXP_OF(T)
#define RECIPE_EXPM1(T) "a " RECIPE_EXPM1_OF(T)
#define RECIPE_EXP2_CLAMP_F "-151 129 a min max "
#define RECIPE_EXP2_CLAMP_D "-1076 1025 a min max "
#define RECIPE_EXP2(T)                                                                       \
    RECIPE_EXP2_CLAMP_##T "=x x rint =q x q sub =r r " RECIPE_EXP2_POLY_##T "1 fma "         \
    RECIPE_SCALE_##T
#define RECIPE_TANH_END_F "10 "
#define RECIPE_TANH_END_D "20 "
#define RECIPE_TANH(T)                                                                       \
    RECIPE_TANH_END_##T "a abs min 2 mul =x " RECIPE_EXPM1_REST(T) "q " RECIPE_POWER_##T     \
    "=s s e s 1 sub fma =y y y 2 add div a copysign"

/* -------------------------------------------------------------------------- logarithms ---- */

/* split() of the last value, for f32: names k and f = m - 1, where the value is m 2^k */
#define RECIPE_SPLIT                                                                         \
    "=u u 0x1p-126 lt =t t u 0x1p23 mul u sel =u u #3f2aaaab isub #ff800000 band =e "        \
    "e #17 sar tofloat t -23 0 sel add =k u e isub 1 sub =f "
/* log_sum() of f and k */
#define RECIPE_LOG_SUM                                                                       \
    "f f mul f -0.128916845 f 0.139844358 fma f -0.121842608 fma f 0.140058696 fma "         \
    "f -0.16680488 fma f 0.200104058 fma f -0.249997973 fma f 0.333332151 fma -0.5 fma "     \
    "k 0x1.7f7d1cp-20 mul fma =r k 0x1.62e4p-1 r f add fma "
/* log_limits() of v and the last value */
#define RECIPE_LOG_LIMITS                                                                    \
    "=y v 0 gt =g g v inf lt and y v 0 eq -inf g v nan sel sel sel "
#define RECIPE_LOG1P                                                                         \
    "a =w w 1 add =v v 1 sub =o w o sub 1 v o sub sub add =o v " RECIPE_SPLIT                  \
    "f o -126 k neg max toint #7f iadd #17 shl mul add =f " RECIPE_LOG_SUM RECIPE_LOG_LIMITS \
    "w copysign"
#define RECIPE_LOG "a =v v " RECIPE_SPLIT RECIPE_LOG_SUM RECIPE_LOG_LIMITS
#define RECIPE_LOG2                                                                          \
    "a =v v " RECIPE_SPLIT "f 0x1.715476p+0 f 0x1.4ae0cp-26 f f mul "                        \
    "-0.186814174 f 0.202045888 fma f -0.175534904 fma f 0.201994061 fma "                   \
    "f -0.240674794 fma f 0.288694054 fma f -0.360669672 fma f 0.480896533 fma "             \
    "f -0.721347511 fma mul fma fma k add " RECIPE_LOG_LIMITS

/* ------------------------------------------------------------------ sigmoid and related --- */

/* names e = exp(-|y|) of the last value y: sigmoid(y) is 1 / (1 + e), or e / (1 + e) for y < 0 */
#define RECIPE_EXP_NEG_ABS(T) "abs neg " RECIPE_EXP_OF(T) "=e "
#define RECIPE_SIGMOID(T) "a " RECIPE_EXP_NEG_ABS(T) "a 0 lt e 1 sel e 1 add div"
#define RECIPE_SILU(T) "a " RECIPE_EXP_NEG_ABS(T) "-1000 a max a 0 lt e 1 sel mul e 1 add div"
#define RECIPE_SILU_BACKWARD(T)                                                              \
    "b " RECIPE_EXP_NEG_ABS(T) "1 e 1 add div =i b 0 lt e 1 sel i mul =s "                   \
    "a -1000 1000 b min max e i mul i mul s fma mul"
/* elu and its gradient have no function in vmath.h; n1 and n2 are numbers of the call */
#define RECIPE_ELU(T) "a 0 gt a n1 a " RECIPE_EXPM1_OF(T) "mul sel"
#define RECIPE_ELU_BACKWARD(T) "b 0 gt a a n2 mul b " RECIPE_EXP_OF(T) "mul sel"

/* ------------------------------------------------------------------------------- gelu ---- */

#define RECIPE_GELU_1 "1.59576912160573071176 "
#define RECIPE_GELU_3 "0.07135481627260024878 "
#define RECIPE_NORMAL_END_F "15 "
#define RECIPE_NORMAL_END_D "40 "
#define RECIPE_GELU_TANH(T)                                                                  \
    "a a a mul " RECIPE_GELU_3 RECIPE_GELU_1 "fma mul " RECIPE_EXP_NEG_ABS(T)                \
    "-" RECIPE_NORMAL_END_##T "a max a 0 lt e 1 sel mul e 1 add div"
#define RECIPE_GELU_TANH_BACKWARD(T)                                                         \
    "-" RECIPE_NORMAL_END_##T RECIPE_NORMAL_END_##T "b min max =k k k mul =z "               \
    "k z " RECIPE_GELU_3 RECIPE_GELU_1 "fma mul " RECIPE_EXP_NEG_ABS(T)                      \
    "1 e 1 add div =i k 0 lt e 1 sel i mul =s "                                              \
    "k z " RECIPE_GELU_3 "3 mul " RECIPE_GELU_1 "fma mul =w a e i mul i mul w s fma mul"
/* normal_cdf() of the last value, for f32. Names v the value, h the bell, w the tail Phi(-|v|) */
#define RECIPE_NORMAL                                                                        \
    "=v 15 v abs min =t t #fffff000 band =k "                                                \
    "-104 k k mul -0.5 mul max =x t k sub t k add mul -0.5 mul =w "                          \
    "x w add " RECIPE_LOG2E " mul rint =q " RECIPE_REDUCE_F "w add "                         \
    RECIPE_REDUCED(F) "=h 1 t 0.5 1 fma div =u u 0.625 sub =r "                              \
    "0.0681116283 r 0.0170000996 fma r -0.0718368292 fma r 0.0363606066 fma "                \
    "r 0.0226599313 fma r -0.0702407882 fma r 0.0538239144 fma r 0.0469938666 fma "          \
    "r -0.134642199 fma r 0.00401609577 fma r 0.339008003 fma r 0.378244728 fma =g "         \
    "h u mul g mul =w v 0 lt w 1 w sub sel "
#define RECIPE_GELU "-15 a max a " RECIPE_NORMAL "mul"
#define RECIPE_GELU_BACKWARD                                                                 \
    "b " RECIPE_NORMAL "=o a -15 15 b min max h 0.39894228040143267794 mul o fma mul"

#endif
