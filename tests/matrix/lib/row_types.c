/* tests/matrix/lib/row_types.c - rows of weft/types.h: what they take is the program's own, and no runtime knows of it. */
#include "row.h"

ROW(weft_type_size, ON_NOTHING)
{
    weft_type_size(WEFT_T_I32);
}

ROW(weft_type_name, ON_NOTHING)
{
    turn_text(t, weft_type_name(WEFT_T_I32));
}

static weft_tensor_t tensor(int64_t *shape)
{
    return (weft_tensor_t){.device_type = 1, .ndim = 1, .code = 2, .bits = 32, .lanes = 1, .shape = shape};
}

ROW(weft_tensor_bytes, ON_NOTHING)
{
    int64_t shape[1] = {4};
    weft_tensor_t it = tensor(shape);
    uint64_t bytes;
    turn_status(t, weft_tensor_bytes(&it, &bytes));
}

ROW(weft_tensor_compact, ON_NOTHING)
{
    int64_t shape[1] = {4};
    weft_tensor_t it = tensor(shape);
    weft_tensor_compact(&it);
}

ROW(weft_sig_parse, ON_NOTHING)
{
    weft_sig_t *sig;
    if (turn_status(t, weft_sig_parse("add(a: i32, b: i32) -> i32", &sig)))
        weft_sig_free(sig);
}

ROW(weft_sig_free, ON_NOTHING)
{
    weft_sig_t *sig;
    if (turn_status(t, weft_sig_parse("add(a: i32, b: i32) -> i32", &sig)))
        weft_sig_free(sig);
}

ROW(weft_sig_text, NEEDS_SIG | ON_NOTHING)
{
    turn_text(t, weft_sig_text(s->sig));
}

ROW(weft_sig_name, NEEDS_SIG | ON_NOTHING)
{
    turn_text(t, weft_sig_name(s->sig));
}

ROW(weft_sig_params, NEEDS_SIG | ON_NOTHING)
{
    size_t n;
    turn_text(t, weft_sig_params(s->sig, &n)->name);
}

ROW(weft_sig_results, NEEDS_SIG | ON_NOTHING)
{
    size_t n;
    turn_text(t, weft_sig_results(s->sig, &n)->name);
}

ROW(weft_sig_idempotent, NEEDS_SIG | ON_NOTHING)
{
    weft_sig_idempotent(s->sig);
}

ROW(weft_sig_oneway, NEEDS_SIG | ON_NOTHING)
{
    weft_sig_oneway(s->sig);
}

ROW(weft_sig_hash, NEEDS_SIG | ON_NOTHING)
{
    weft_sig_hash(s->sig);
}

ROW(weft_value_parse, ON_NOTHING)
{
    weft_value_t value;
    char buf[64];
    turn_status(t, weft_value_parse(WEFT_T_I32, "25", buf, sizeof buf, &value));
}

ROW(weft_value_format, ON_NOTHING)
{
    weft_value_t value = {.type = WEFT_T_I32};
    char buf[64];
    weft_value_format(&value, buf, sizeof buf);
}
