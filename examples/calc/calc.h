/* examples/calc/calc.h - the functions of the service "calc", for its server and its clients. */
#ifndef CALC_H
#define CALC_H

#include <weft/function.h>

/*            name in C, on the wire, result,                           parameters */
WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_divide, "divide", ((i32, quotient), (i32, rest)), (i32, a), (i32, b))
WEFT_FUNCTION(calc_upper, "upper", string, (string, text))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION(calc_scale, "scale", tensor, (tensor, image), (f32, by))
WEFT_FUNCTION(calc_count, "count", u64, (u64, by))
WEFT_FUNCTION(calc_sleep, "sleep", void, (u64, ms))
WEFT_FUNCTION(calc_factor, "factor", u64, (u64, of))
WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))
WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values))

/* Every service answers this one. */
WEFT_FUNCTION_IDEMPOTENT(any_functions, "weft.functions", string, (string, service))

#endif
