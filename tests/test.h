/* tests/test.h - one file, one program, many tests named as sentences. They register themselves.
 *
 *     TEST(peer_killed_mid_send_completes_with_peer_error)
 *     {
 *         CHECK_EQ(weft_op_wait(&op, WEFT_SECOND), WEFT_ERR_PEER);
 *     }
 *
 * Include it in exactly one source, C or C++, of the program; it has main(). Arguments: substrings of names to run (all
 * without), --list. Each test runs in a forked child (unless --no-fork, for debuggers and sanitizers' ease) with a time limit
 * of TEST_SECONDS, so that a crash or a hang is one failure and not the end. SKIP("why") ends a test as skipped. Exit status: 0
 * all passed or skipped, 1 otherwise, 77 all skipped. */
#ifndef WEFT_TEST_H
#define WEFT_TEST_H

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef TEST_SECONDS
#define TEST_SECONDS 180
#endif

typedef struct test_case {
    const char *name;
    void (*fn)(void);
    struct test_case *next;
} test_case_t;

static test_case_t *test_first, **test_last = &test_first;

static inline void test_register(test_case_t *t)
{
    *test_last = t;
    test_last = &t->next;
}

#define TEST(name) \
    static void test_fn_##name(void); \
    static test_case_t test_case_##name = {#name, test_fn_##name, NULL}; \
    __attribute__((constructor)) static void test_reg_##name(void) { test_register(&test_case_##name); } \
    static void test_fn_##name(void)

#define TEST_SKIPPED 77

/* A test that ends at a failed check frees nothing. AddressSanitizer asks this before it looks for leaks: hundreds of lines about
 * them would hide the check. */
static bool test_failed;
#ifdef __cplusplus
extern "C"
#endif
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return test_failed;
}

#define FAIL(...) \
    do { \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr); \
        test_failed = true; \
        exit(1); \
    } while (0)
#define SKIP(...) \
    do { \
        printf("# skipped: "); \
        printf(__VA_ARGS__); \
        fputc('\n', stdout); \
        fflush(stdout); \
        exit(TEST_SKIPPED); \
    } while (0)
#define CHECK(cond) \
    do { \
        if (!(cond)) \
            FAIL("%s is false", #cond); \
    } while (0)
#define CHECK_EQ(a, b) \
    do { \
        long long test_a = (long long)(a), test_b = (long long)(b); \
        if (test_a != test_b) \
            FAIL("%s is %lld, not %s (%lld)", #a, test_a, #b, test_b); \
    } while (0)
#define CHECK_STR(a, b) \
    do { \
        const char *test_a = (a), *test_b = (b); \
        if (!test_a || !test_b || strcmp(test_a, test_b)) \
            FAIL("%s is \"%s\", not \"%s\"", #a, test_a ? test_a : "(null)", test_b ? test_b : "(null)"); \
    } while (0)
/* `st` is WEFT_OK; needs weft/status.h. */
#define CHECK_OK(call) \
    do { \
        weft_status_t test_st = (call); \
        if (test_st) \
            FAIL("%s: %s (%s)", #call, weft_status_name(test_st), weft_last_error()); \
    } while (0)

static inline double test_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Wait until another process or thread has made it true. */
#define TEST_UNTIL(cond, seconds) \
    do { \
        double until_end = test_now() + (seconds); \
        while (!(cond)) { \
            usleep(500); \
            if (test_now() > until_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

static int test_run_forked(const test_case_t *t)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        return 1;
    }
    if (pid == 0) {
        alarm(TEST_SECONDS);
        t->fn();
        exit(0);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    int sig = WTERMSIG(status);
    if (sig == SIGALRM)
        fprintf(stderr, "%s: no end after %d s\n", t->name, TEST_SECONDS);
    else
        fprintf(stderr, "%s: killed by signal %d (%s)\n", t->name, sig, strsignal(sig));
    return 1;
}

int main(int argc, char **argv)
{
    bool do_fork = true;
    unsigned passed = 0, failed = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (test_case_t *t = test_first; t; t = t->next) {
        bool wanted = true, filtered = false;
        for (int i = 1; i < argc; i++) {
            if (!strcmp(argv[i], "--no-fork")) {
                do_fork = false;
            } else if (!strcmp(argv[i], "--list")) {
                wanted = false;
                puts(t->name);
                break;
            } else {
                if (!filtered)
                    wanted = false;
                filtered = true;
                wanted = wanted || strstr(t->name, argv[i]);
            }
        }
        if (!wanted)
            continue;
        double start = test_now();
        int rc = 0;
        if (do_fork)
            rc = test_run_forked(t);
        else
            t->fn();
        const char *word = rc == 0 ? "ok" : rc == TEST_SKIPPED ? "skip" : "FAIL";
        printf("%-4s %s (%.0f ms)\n", word, t->name, (test_now() - start) * 1e3);
        passed += rc == 0;
        skipped += rc == TEST_SKIPPED;
        failed += rc != 0 && rc != TEST_SKIPPED;
    }
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed ? 1 : !passed && skipped ? TEST_SKIPPED : 0;
}

#endif
