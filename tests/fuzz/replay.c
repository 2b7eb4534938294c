/* tests/fuzz/replay.c - main() for a fuzzer where libFuzzer is not: runs the corpus, and seeded mutations of it.
 *
 *     uri [--mutate N] [--seed S] [--from R] [FILE or FOLDER ...]
 *
 * Every input runs as it is; then N (2000) times per input a few bytes of it are changed, cut off, inserted, repeated, or
 * replaced by a piece of another input. The same inputs, N and S give the same runs, and a crash is preceded by the number of
 * its run (with --from R --mutate 1 only that one runs again). Without any input the mutations are of nothing. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

enum { INPUT_MAX = 4096, DEFAULT_MUTATIONS = 2000 };

typedef struct input {
    uint8_t *bytes;
    size_t n;
    char *path;
} input_t;

static input_t *inputs;
static size_t inputs_n;
static char now_running[512]; /* for the crash handler */

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(2);
}

static void *need(void *p)
{
    if (!p)
        die("memory");
    return p;
}

static void add_input(const uint8_t *bytes, size_t n, const char *path)
{
    inputs = need(realloc(inputs, (inputs_n + 1) * sizeof *inputs));
    input_t *in = &inputs[inputs_n++];
    in->bytes = need(malloc(n ? n : 1));
    if (n)
        memcpy(in->bytes, bytes, n);
    in->n = n;
    in->path = need(strdup(path));
}

static void add_file(const char *path)
{
    static uint8_t buf[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f)
        die(path);
    size_t n = fread(buf, 1, sizeof buf, f);
    if (ferror(f))
        die(path);
    fclose(f);
    add_input(buf, n, path);
}

/* A file, or every file in a folder, in the order of their names: the order is part of the seed. */
static void add_path(const char *path)
{
    struct stat st;
    struct dirent **names;
    if (stat(path, &st))
        die(path);
    if (!S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    int n = scandir(path, &names, NULL, alphasort);
    if (n < 0)
        die(path);
    for (int i = 0; i < n; i++) {
        char *full;
        if (names[i]->d_name[0] != '.') {
            if (asprintf(&full, "%s/%s", path, names[i]->d_name) < 0)
                die("memory");
            add_path(full);
            free(full);
        }
        free(names[i]);
    }
    free(names);
}

/* An allocation of exactly n bytes, so that a sanitizer sees the first byte read past the end. */
static void run_one(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = need(malloc(n ? n : 1));
    if (n)
        memcpy(copy, bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

/* Make room for k bytes at `at`; how many there was room for. */
static size_t open_gap(uint8_t *buf, size_t *n, size_t at, size_t k)
{
    if (k > INPUT_MAX - *n)
        k = INPUT_MAX - *n;
    memmove(buf + at + k, buf + at, *n - at);
    *n += k;
    return k;
}

static size_t mutate(wefti_rng_t *rng, uint8_t *buf, size_t n)
{
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff, ',', ':', '/', '[', ']', '@', '=', '\n', '#', '%', '.', ' ', '9'};
    for (uint64_t edits = 1 + wefti_rng_below(rng, 4); edits; edits--) {
        size_t at = (size_t)wefti_rng_below(rng, n + 1), left = n - at, k;
        const input_t *other = &inputs[wefti_rng_below(rng, inputs_n)];
        switch (wefti_rng_below(rng, 7)) {
        case 0: /* one bit */
            if (left)
                buf[at] ^= (uint8_t)(1u << wefti_rng_below(rng, 8));
            break;
        case 1: /* one byte, any */
            if (left)
                buf[at] = (uint8_t)wefti_rng_next(rng);
            break;
        case 2: /* one byte, with a meaning */
            if (left)
                buf[at] = odd[wefti_rng_below(rng, sizeof odd)];
            break;
        case 3: /* the same, inserted */
            if (open_gap(buf, &n, at, 1))
                buf[at] = odd[wefti_rng_below(rng, sizeof odd)];
            break;
        case 4: /* some bytes taken out, sometimes all to the end */
            k = left ? 1 + (size_t)wefti_rng_below(rng, left) : 0;
            memmove(buf + at, buf + at + k, left - k);
            n -= k;
            break;
        case 5: /* some bytes repeated */
            k = left ? 1 + (size_t)wefti_rng_below(rng, left) : 0;
            k = open_gap(buf, &n, at, k);
            memcpy(buf + at, buf + at + k, k);
            break;
        default: /* a piece of another input */
            if (other->n) {
                size_t from = (size_t)wefti_rng_below(rng, other->n);
                k = open_gap(buf, &n, at, 1 + (size_t)wefti_rng_below(rng, other->n - from));
                memcpy(buf + at, other->bytes + from, k);
            }
        }
    }
    return n;
}

static void run_mutation(uint64_t seed, uint64_t run)
{
    uint8_t buf[INPUT_MAX];
    wefti_rng_t rng = {seed ^
                       run * UINT64_C(0xd1342543de82ef95)}; /* each run has a generator of its own, so that it runs alone too */
    const input_t *in = &inputs[run % inputs_n];
    size_t n = in->n < INPUT_MAX ? in->n : INPUT_MAX;
    memcpy(buf, in->bytes, n);
    run_one(buf, mutate(&rng, buf, n));
}

static void say_which(void)
{
    /* only what a signal handler may do: the text was made before */
    ssize_t ignored = write(STDERR_FILENO, now_running, strlen(now_running));
    (void)ignored;
}

static void crashed(int sig)
{
    say_which();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void watch_crashes(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction was;
        if (!sigaction(signals[i], NULL, &was) && was.sa_handler == SIG_DFL) /* a sanitizer's own report says more */
            signal(signals[i], crashed);
    }
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_which);
}

static uint64_t number(const char *option, const char *text)
{
    char *end;
    errno = 0;
    uint64_t v = text ? strtoull(text, &end, 0) : 0;
    if (!text || end == text || *end || errno) {
        fprintf(stderr, "%s needs a number, not \"%s\"\n", option, text ? text : "");
        exit(2);
    }
    return v;
}

int main(int argc, char **argv)
{
    uint64_t mutations = DEFAULT_MUTATIONS, seed = 1, from = 0;
    bool one_stretch = false; /* --from was given */
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--mutate"))
            mutations = number(argv[i], argv[i + 1]), i++;
        else if (!strcmp(argv[i], "--seed"))
            seed = number(argv[i], argv[i + 1]), i++;
        else if (!strcmp(argv[i], "--from"))
            from = number(argv[i], argv[i + 1]), one_stretch = true, i++;
        else
            add_path(argv[i]);
    }
    if (!inputs_n)
        add_input((const uint8_t *)"", 0, "(nothing)");
    watch_crashes();
    for (size_t i = 0; !one_stretch && i < inputs_n; i++) {
        snprintf(now_running, sizeof now_running, "crashed on %s\n", inputs[i].path);
        run_one(inputs[i].bytes, inputs[i].n);
    }
    /* from counts single runs, --mutate runs per input: one run alone is --from R --mutate 1 */
    uint64_t runs = one_stretch ? mutations : mutations * inputs_n;
    for (uint64_t run = from; run < from + runs; run++) {
        snprintf(now_running, sizeof now_running, "crashed on run %" PRIu64 " of seed %" PRIu64 "\n", run, seed);
        run_mutation(seed, run);
    }
    printf("%zu inputs, %" PRIu64 " mutations, seed %" PRIu64 "\n", inputs_n, runs, seed);
    for (size_t i = 0; i < inputs_n; i++) {
        free(inputs[i].bytes);
        free(inputs[i].path);
    }
    free(inputs);
    return 0;
}
