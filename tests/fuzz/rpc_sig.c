/* tests/fuzz/rpc_sig.c - any text is refused with words, or is a signature that comes back from its own text. */
#include <stdlib.h>
#include <string.h>
#include <weft/types.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static void try_sig(const weft_sig_t *sig)
{
    weft_sig_t *again = NULL;
    size_t n, m;
    must(strlen(weft_sig_text(sig)) <= WEFT_SIG_TEXT);
    must(!weft_sig_parse(weft_sig_text(sig), &again));
    must(!strcmp(weft_sig_text(sig), weft_sig_text(again)) && !strcmp(weft_sig_name(sig), weft_sig_name(again)));
    must(weft_sig_hash(sig) == weft_sig_hash(again));
    const weft_param_t *a = weft_sig_params(sig, &n), *b = weft_sig_params(again, &m);
    must(n == m && n <= WEFT_SIG_PARAMS);
    for (size_t i = 0; i < n; i++)
        must(*a[i].name && !strcmp(a[i].name, b[i].name) && a[i].type == b[i].type && (!a[i].stream || i + 1 == n));
    a = weft_sig_results(sig, &n);
    weft_sig_results(again, &m);
    must(n == m && n <= WEFT_SIG_PARAMS && (!weft_sig_oneway(sig) || !n));
    for (size_t i = 0; i < n; i++)
        must(strlen(a[i].name) <= 63 && (!a[i].stream || n == 1));
    weft_sig_free(again);
}

/* What is written on a command line, too: each type reads the text, and writes what it reads. */
static void try_value(uint32_t type, const char *text)
{
    char buf[256], out[8192], again[8192];
    weft_value_t v;
    if (weft_value_parse(type, text, buf, sizeof buf, &v)) {
        must(*weft_last_error() != 0);
        return;
    }
    if (weft_value_format(&v, out, sizeof out) >= sizeof out)
        return;
    must(!weft_value_parse(type, out, buf, sizeof buf, &v));
    must(weft_value_format(&v, again, sizeof again) == strlen(out) && !strcmp(out, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    weft_sig_t *sig = NULL;
    char *text = malloc(size + 1);
    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    if (weft_sig_parse(text, &sig)) {
        must(!sig && *weft_last_error() != 0);
    } else {
        try_sig(sig);
        weft_sig_free(sig);
    }
    for (uint32_t type = 0; type < 2 * WEFT_T_VECTOR; type++)
        try_value(type, text);
    free(text);
    return 0;
}
