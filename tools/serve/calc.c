/* tools/serve/calc.c - the functions of the demo service: one of each kind there is.
 *
 * Functions that compute answer before they return, on the runtime's thread or on one of the service's. Functions that take
 * time (sleep, and those with streams) keep their request and go on when a timer or a stream calls back, so that no thread
 * waits for them. They end as soon as their caller is gone. tests/tools/tools_serve.py calls every one of them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <weft/function.h>

#include "serve.h"

/* clang-format off: one function a line */
WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_sub, "sub", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_mul, "mul", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_div, "div", f64, (f64, a), (f64, b))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION(calc_upper, "upper", string, (string, text))
WEFT_FUNCTION(calc_split, "split", ((string, head), (string, tail)), (string, text), (u64, at))
WEFT_FUNCTION(calc_scale, "scale", tensor, (tensor, image), (f32, by))
WEFT_FUNCTION(calc_count, "count", u64)
WEFT_FUNCTION(calc_sleep, "sleep", void, (u32, ms))
WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))
WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values))
WEFT_FUNCTION_BOTH_STREAMS(calc_echo, "echo", string, (string, lines))
/* clang-format on */

static calc_add_fn add;
static calc_sub_fn sub;
static calc_mul_fn mul;
static calc_div_fn divide;
static calc_mean_fn mean;
static calc_upper_fn upper;
static calc_split_fn split;
static calc_scale_fn scale;
static calc_count_fn count;
static calc_sleep_fn sleep_for;
static calc_log_fn log_line;
static calc_primes_fn primes;
static calc_total_fn total;
static calc_echo_fn echo;

/* --- at once -------------------------------------------------------------------------------------------------------------- */

static weft_code_t too_large(weft_request_t *request)
{
    return weft_failed(request, WEFT_CODE_OUT_OF_RANGE, "the result does not fit in i32");
}

static weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
{
    (void)user;
    return __builtin_add_overflow(a, b, result_out) ? too_large(request) : WEFT_CODE_OK;
}

static weft_code_t sub(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
{
    (void)user;
    return __builtin_sub_overflow(a, b, result_out) ? too_large(request) : WEFT_CODE_OK;
}

static weft_code_t mul(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
{
    (void)user;
    return __builtin_mul_overflow(a, b, result_out) ? too_large(request) : WEFT_CODE_OK;
}

static weft_code_t divide(weft_request_t *request, void *user, double a, double b, double *result_out)
{
    (void)user;
    if (b == 0)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "nothing can be divided by 0");
    *result_out = a / b;
    return WEFT_CODE_OK;
}

static weft_code_t mean(weft_request_t *request, void *user, weft_f64s_t values, double *result_out)
{
    double sum = 0;
    (void)user;
    if (!values.n)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "the mean of no values is none");
    for (size_t i = 0; i < values.n; i++)
        sum += values.data[i];
    *result_out = sum / (double)values.n;
    return WEFT_CODE_OK;
}

static weft_code_t upper(weft_request_t *request, void *user, weft_string_t text, weft_string_t *result_out)
{
    char *out = malloc(text.n + 1);
    (void)user;
    (void)result_out;
    if (!out)
        return weft_failed(request, WEFT_CODE_RESOURCE_EXHAUSTED, "no memory for the text");
    for (size_t i = 0; i < text.n; i++) { /* letters of ASCII; others stay as they are */
        char c = text.data[i];
        out[i] = (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    calc_upper_reply(request, weft_string_n(out, text.n));
    free(out);
    return WEFT_LATER;
}

static weft_code_t split(weft_request_t *request, void *user, weft_string_t text, uint64_t at, calc_split_result_t *result_out)
{
    (void)user;
    if (at > text.n)
        return weft_failed(request, WEFT_CODE_OUT_OF_RANGE, "the text is shorter than that");
    if (at < text.n && (text.data[at] & 0xc0) == 0x80)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "that is in the middle of a character");
    result_out->head = weft_string_n(text.data, at);
    result_out->tail = weft_string_n(text.data + at, text.n - at);
    return WEFT_CODE_OK;
}

static weft_code_t count(weft_request_t *request, void *user, uint64_t *result_out)
{
    static _Atomic uint64_t calls;
    (void)request;
    (void)user;
    *result_out = atomic_fetch_add(&calls, 1) + 1;
    return WEFT_CODE_OK;
}

static weft_code_t log_line(weft_request_t *request, void *user, weft_string_t line)
{
    char plain[1024], *text = strndup(line.data ? line.data : "", line.n);
    (void)request;
    (void)user;
    printf("log: %s\n", tool_plain(text ? text : "(out of memory)", plain, sizeof plain));
    fflush(stdout);
    free(text);
    return WEFT_CODE_OK;
}

/* --- tensors -------------------------------------------------------------------------------------------- */

/* The result is borrowed until it is sent, and never copied. */
typedef struct scaled {
    weft_op_t op;
    weft_tensor_t tensor;
    int64_t shape[WEFT_TENSOR_DIMS];
    void *data;
} scaled_t;

static void scaled_sent(weft_op_t *op, void *user)
{
    scaled_t *s = user;
    (void)op;
    free(s->data);
    free(s);
}

static weft_code_t scale(weft_request_t *request, void *user, const weft_tensor_t *image, float by,
                         const weft_tensor_t **result_out)
{
    bool f32 = image->code == 2 && image->bits == 32 && image->lanes == 1,
         f64 = image->code == 2 && image->bits == 64 && image->lanes == 1;
    const uint8_t *from = (const uint8_t *)image->data + image->byte_offset;
    uint64_t bytes;
    scaled_t *s;
    (void)user;
    (void)result_out;
    if (!f32 && !f64)
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT, "tensors of f32 and f64 are scaled, no others");
    if ((image->device_type != 1 && image->device_type != 3) || !weft_tensor_compact(image) || weft_tensor_bytes(image, &bytes))
        return weft_failed(request, WEFT_CODE_INVALID_ARGUMENT,
                           "tensors that lie in host memory in one piece are scaled, no others");
    s = calloc(1, sizeof *s);
    if (s)
        s->data = malloc(bytes + 1);
    if (!s || !s->data) {
        free(s);
        return weft_failed(request, WEFT_CODE_RESOURCE_EXHAUSTED, "no memory for the result");
    }
    for (uint64_t i = 0; f32 && i < bytes / 4; i++)
        ((float *)s->data)[i] = ((const float *)(const void *)from)[i] * by;
    for (uint64_t i = 0; f64 && i < bytes / 8; i++)
        ((double *)s->data)[i] = ((const double *)(const void *)from)[i] * (double)by;
    for (int32_t i = 0; i < image->ndim; i++)
        s->shape[i] = image->shape[i];
    s->tensor = *image;
    s->tensor.data = s->data;
    s->tensor.byte_offset = 0;
    s->tensor.shape = s->shape;
    s->tensor.strides = NULL;
    s->tensor.device_type = 1;
    s->tensor.device_id = 0;
    s->op.fn = scaled_sent;
    s->op.user = s;
    if (calc_scale_reply_from(request, &s->tensor, &s->op))
        scaled_sent(&s->op, s);
    return WEFT_LATER;
}

/* --- later ---------------------------------------------------------------------------------------------- */

typedef struct later {
    weft_request_t *request;
    weft_op_t op;
    weft_item_t item;
    uint64_t at, below;
    double sum;
} later_t;

/* Keep the request, with memory for its state; NULL: it has been answered. */
static later_t *later_new(weft_request_t *request, weft_op_fn fn)
{
    later_t *l = calloc(1, sizeof *l);
    if (!l) {
        weft_request_fail(request, WEFT_CODE_RESOURCE_EXHAUSTED, "no memory for the call");
        return NULL;
    }
    l->request = weft_request_keep(request);
    if (!l->request) {
        free(l);
        return NULL;
    }
    l->op.fn = fn;
    l->op.user = l;
    return l;
}

/* The library answers a request that was not answered, if its caller still waits. */
static void later_free(later_t *l)
{
    weft_request_on_cancel(l->request, NULL, NULL);
    weft_request_release(l->request);
    free(l);
}

static void woken(weft_op_t *op, void *user)
{
    later_t *l = user;
    if (!op->status)
        calc_sleep_reply(l->request);
    later_free(l);
}

static void wake_early(weft_request_t *request, void *user)
{
    later_t *l = user;
    (void)request;
    weft_op_cancel(&l->op);
}

static weft_code_t sleep_for(weft_request_t *request, void *user, uint32_t ms)
{
    later_t *l = later_new(request, woken);
    if (!l)
        return WEFT_LATER;
    if (weft_timer_start(user, ms * WEFT_MILLISECOND, &l->op)) {
        weft_request_fail(l->request, WEFT_CODE_RESOURCE_EXHAUSTED, "no timer can be started");
        later_free(l);
    } else {
        weft_request_on_cancel(l->request, wake_early, l);
    }
    return WEFT_LATER;
}

/* --- streams -------------------------------------------------------------------------------------------- */

static bool is_prime(uint64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (uint64_t d = 3; d <= n / d; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

/* Send until the stream is full; the send that has to wait calls this again. */
static void more_primes(weft_op_t *op, void *user)
{
    later_t *l = user;
    weft_status_t st = op->status;
    for (; !st && l->at < l->below && !weft_request_cancelled(l->request); l->at++) {
        if (!is_prime(l->at))
            continue;
        st = calc_primes_give(l->request->stream, l->at, NULL);
        if (st != WEFT_ERR_AGAIN)
            continue;
        st = calc_primes_give(l->request->stream, l->at, &l->op);
        if (!st) {
            l->at++;
            return;
        }
    }
    if (!st && l->at >= l->below)
        calc_primes_reply(l->request);
    later_free(l);
}

static weft_code_t primes(weft_request_t *request, void *user, uint64_t below)
{
    later_t *l = later_new(request, more_primes);
    (void)user;
    if (!l)
        return WEFT_LATER;
    l->at = 2;
    l->below = below;
    more_primes(&l->op, l);
    return WEFT_LATER;
}

static void next_value(weft_op_t *op, void *user)
{
    later_t *l = user;
    weft_status_t st = op->status;
    if (!st && op->len) {
        l->sum += calc_total_sent(&l->item);
        weft_item_release(&l->item);
        st = weft_stream_recv(l->request->stream, &l->item, &l->op);
        if (!st)
            return;
    } else if (!st) {
        calc_total_reply(l->request, l->sum);
    }
    later_free(l);
}

static weft_code_t total(weft_request_t *request, void *user, double *result_out)
{
    later_t *l = later_new(request, next_value);
    (void)user;
    (void)result_out;
    if (l && weft_stream_recv(l->request->stream, &l->item, &l->op))
        later_free(l);
    return WEFT_LATER;
}

/* A line came and is sent back: its views stay until it is sent. */
static void line_came(weft_op_t *op, void *user);

static void line_sent(weft_op_t *op, void *user)
{
    later_t *l = user;
    weft_status_t st = op->status;
    weft_item_release(&l->item);
    l->op.fn = line_came;
    if (!st)
        st = weft_stream_recv(l->request->stream, &l->item, &l->op);
    if (st)
        later_free(l);
}

static void line_came(weft_op_t *op, void *user)
{
    later_t *l = user;
    weft_status_t st = op->status;
    if (!st && op->len) {
        l->op.fn = line_sent;
        st = calc_echo_give(l->request->stream, calc_echo_sent(&l->item), &l->op);
        if (!st)
            return;
        weft_item_release(&l->item);
    } else if (!st) {
        calc_echo_reply(l->request);
    }
    later_free(l);
}

static weft_code_t echo(weft_request_t *request, void *user)
{
    later_t *l = later_new(request, line_came);
    (void)user;
    if (l && weft_stream_recv(l->request->stream, &l->item, &l->op))
        later_free(l);
    return WEFT_LATER;
}

weft_status_t calc_serve(weft_runtime_t *rt, weft_service_t *service, bool threads)
{
    weft_function_opts_t computes = WEFT_FUNCTION_OPTS_INIT;
    weft_status_t st;
    computes.threads = threads;
    st = calc_add_serve(service, add, NULL, &computes);
    st = st ? st : calc_sub_serve(service, sub, NULL, &computes);
    st = st ? st : calc_mul_serve(service, mul, NULL, &computes);
    st = st ? st : calc_div_serve(service, divide, NULL, &computes);
    st = st ? st : calc_mean_serve(service, mean, NULL, &computes);
    st = st ? st : calc_upper_serve(service, upper, NULL, &computes);
    st = st ? st : calc_split_serve(service, split, NULL, &computes);
    st = st ? st : calc_scale_serve(service, scale, NULL, &computes);
    st = st ? st : calc_count_serve(service, count, NULL, NULL);
    st = st ? st : calc_sleep_serve(service, sleep_for, rt, NULL);
    st = st ? st : calc_log_serve(service, log_line, NULL, NULL);
    st = st ? st : calc_primes_serve(service, primes, NULL, NULL);
    st = st ? st : calc_total_serve(service, total, NULL, NULL);
    st = st ? st : calc_echo_serve(service, echo, NULL, NULL);
    return st;
}
