/* tests/unit/base_log.c - where lines go, when, and what they look like; the detail of the last error.
 *
 * ctest: label=thread */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "../test.h"

/* --- helpers ---------------------------------------------------------------------------------------------------------- */

static int saved_stderr = -1, stderr_pipe[2];

static void capture_stderr(void)
{
    fflush(stderr);
    CHECK_EQ(pipe2(stderr_pipe, O_CLOEXEC | O_NONBLOCK), 0);
    saved_stderr = dup(2);
    dup2(stderr_pipe[1], 2);
}

/* What was written since; stderr is itself again. */
static const char *captured(void)
{
    static char text[8192];
    fflush(stderr);
    ssize_t n = read(stderr_pipe[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    dup2(saved_stderr, 2);
    close(saved_stderr);
    close(stderr_pipe[0]);
    close(stderr_pipe[1]);
    return text;
}

static char last_line[2048];
static weft_log_level_t last_level;
static unsigned lines_n;

static void keep_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    last_level = level;
    snprintf(last_line, sizeof last_line, "%s", line);
    lines_n++;
}

/* --- stderr and levels ------------------------------------------------------------------------------------------------ */

TEST(lines_go_to_stderr_with_program_and_level)
{
    weft_log_set_level(WEFT_LOG_DEBUG);
    capture_stderr();
    wefti_error("a %d", 1);
    wefti_warn("b");
    wefti_info("c");
    wefti_debug("d");
    CHECK_STR(captured(), "weft: error: a 1\nweft: warn: b\nweft: info: c\nweft: debug: d\n");
}

static int evaluated;
static int evaluate(void)
{
    return ++evaluated;
}

TEST(a_line_above_the_level_is_not_written_and_its_arguments_are_not_evaluated)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    capture_stderr();
    wefti_warn("%d", evaluate());
    wefti_error("%d", evaluate());
    weft_log_set_level(WEFT_LOG_NONE);
    wefti_error("%d", evaluate());
    CHECK_STR(captured(), "weft: error: 1\n");
    CHECK_EQ(evaluated, 1);
}

TEST(a_level_out_of_range_is_the_nearest_one)
{
    weft_log_set_level((weft_log_level_t)99);
    CHECK_EQ(atomic_load(&wefti_log_level), WEFT_LOG_DEBUG);
    weft_log_set_level((weft_log_level_t)-1);
    CHECK_EQ(atomic_load(&wefti_log_level), WEFT_LOG_NONE);
}

static void check_first_level(const char *env, const char *expected)
{
    if (env)
        setenv("WEFT_LOG", env, 1);
    else
        unsetenv("WEFT_LOG");
    atomic_store(&wefti_log_level, WEFTI_LOG_UNREAD);
    capture_stderr();
    wefti_debug("debug");
    wefti_info("info");
    wefti_warn("warn");
    wefti_error("error");
    CHECK_STR(captured(), expected);
}

TEST(the_first_line_reads_the_configured_level)
{
    unsetenv("WEFT_CONFIG_FILE");
    CHECK_EQ(atomic_load(&wefti_log_level), WEFTI_LOG_UNREAD); /* nothing ran at load */
    check_first_level(NULL, "weft: warn: warn\nweft: error: error\n");
    check_first_level("none", "");
    check_first_level("error", "weft: error: error\n");
    check_first_level("WARN", "weft: warn: warn\nweft: error: error\n");
    check_first_level("info", "weft: info: info\nweft: warn: warn\nweft: error: error\n");
    check_first_level("debug", "weft: debug: debug\nweft: info: info\nweft: warn: warn\nweft: error: error\n");
    check_first_level("nonsense", "weft: warn: warn\nweft: error: error\n");
}

TEST(the_level_may_come_from_the_file)
{
    char path[] = "/tmp/weft-test-log-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "log = error\n", 12), 12);
    close(fd);
    setenv("WEFT_CONFIG_FILE", path, 1);
    check_first_level(NULL, "weft: error: error\n");
    check_first_level("none", "");
    unlink(path);
}

TEST(a_level_that_was_set_is_not_overwritten_by_the_configuration)
{
    setenv("WEFT_LOG", "debug", 1);
    weft_log_set_level(WEFT_LOG_ERROR);
    capture_stderr();
    wefti_warn("no");
    wefti_log_configured(WEFT_LOG_DEBUG);
    wefti_warn("no");
    CHECK_STR(captured(), "");
}

TEST(reading_the_level_leaves_the_last_error_alone)
{
    setenv("WEFT_CONFIG_FILE", "/nonexistent", 1);
    wefti_fail(WEFT_ERR_INVALID, "mine");
    capture_stderr();
    wefti_debug("first line");
    CHECK_STR(captured(), "");
    CHECK_STR(weft_last_error(), "mine");
}

/* --- lines ------------------------------------------------------------------------------------------------------------ */

TEST(a_line_cannot_be_broken_in_two_by_its_arguments)
{
    weft_log_set_level(WEFT_LOG_WARN);
    capture_stderr();
    wefti_warn("peer \"%s\"", "x\nweft: error: forged\r\x1b[31m\x7f");
    CHECK_STR(captured(), "weft: warn: peer \"x?weft: error: forged??[31m?\"\n");
}

TEST(a_long_line_is_cut_between_characters_and_says_so)
{
    static char text[5000];
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(keep_line, NULL);
    for (int shift = 0; shift < 3; shift++) {
        memset(text, 'x', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4); /* a euro sign */
        wefti_warn("%s", text);
        size_t n = strlen(last_line);
        CHECK(n > 900 && n < 1100);
        CHECK_STR(last_line + n - 3, "...");
        CHECK_EQ((n - 3 - (size_t)shift) % 3, 0);
        CHECK(!memcmp(last_line, text, n - 3));
    }
    weft_log_set_sink(NULL, NULL);
}

TEST(logging_leaves_errno_as_it_was)
{
    weft_log_set_level(WEFT_LOG_WARN);
    int fd = open("/dev/full", O_WRONLY);
    CHECK(fd >= 0);
    int keep = dup(2);
    dup2(fd, 2);
    errno = EBADMSG;
    wefti_warn("nobody reads this");
    int after = errno;
    dup2(keep, 2);
    CHECK_EQ(after, EBADMSG);
    errno = EBADMSG;
    wefti_fail(WEFT_ERR_SYSTEM, "%s", "x");
    CHECK_EQ(errno, EBADMSG);
}

/* --- sinks ------------------------------------------------------------------------------------------------------------ */

TEST(a_sink_gets_the_line_alone_and_stderr_gets_nothing)
{
    weft_log_set_level(WEFT_LOG_INFO);
    weft_log_set_sink(keep_line, NULL);
    capture_stderr();
    wefti_info("hello %s", "sink");
    CHECK_STR(captured(), "");
    CHECK_STR(last_line, "hello sink");
    CHECK_EQ(last_level, WEFT_LOG_INFO);
    weft_log_set_sink(NULL, NULL);
    capture_stderr();
    wefti_info("hello stderr");
    CHECK_STR(captured(), "weft: info: hello stderr\n");
    CHECK_EQ(lines_n, 1);
}

static void log_again(weft_log_level_t level, const char *line, void *user)
{
    keep_line(level, line, user);
    wefti_warn("from inside");
}

TEST(a_sink_that_logs_is_not_called_from_inside_itself)
{
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(log_again, NULL);
    capture_stderr();
    wefti_warn("outside");
    CHECK_STR(captured(), "weft: warn: from inside\n");
    CHECK_EQ(lines_n, 1);
}

static void unset_itself(weft_log_level_t level, const char *line, void *user)
{
    keep_line(level, line, user);
    weft_log_set_sink(NULL, NULL);
}

TEST(a_sink_that_replaces_itself_is_replaced_when_it_returns)
{
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(unset_itself, NULL);
    capture_stderr();
    wefti_warn("one");
    wefti_warn("two");
    CHECK_STR(captured(), "weft: warn: two\n");
    CHECK_EQ(lines_n, 1);
}

/* What a sink's user data looks like while it may be called. */
typedef struct target {
    _Atomic int alive;
    _Atomic unsigned calls;
} target_t;

static _Atomic bool stop;

static void count_line(weft_log_level_t level, const char *line, void *user)
{
    target_t *t = user;
    (void)level;
    (void)line;
    if (!atomic_load(&t->alive))
        abort();
    atomic_fetch_add(&t->calls, 1);
    sched_yield(); /* the moment in which it is replaced */
    if (!atomic_load(&t->alive))
        abort();
}

static void *log_much(void *arg)
{
    while (!atomic_load(&stop))
        wefti_warn("line from %p", arg);
    return NULL;
}

TEST(a_sink_that_was_replaced_is_never_called_again_by_any_thread)
{
    pthread_t threads[3];
    unsigned calls = 0;
    weft_log_set_level(WEFT_LOG_WARN);
    target_t *first = calloc(1, sizeof *first);
    atomic_store(&first->alive, 1);
    weft_log_set_sink(count_line, first);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, log_much, NULL), 0);
    double end = test_now() + 0.5;
    for (target_t *old = first, *next; test_now() < end; old = first) {
        next = calloc(1, sizeof *next);
        CHECK(next);
        atomic_store(&next->alive, 1);
        weft_log_set_sink(count_line, next);
        atomic_store(&old->alive, 0);
        calls += atomic_load(&old->calls);
        free(old); /* a sanitizer would see a late call */
        first = next;
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    weft_log_set_sink(NULL, NULL);
    CHECK(calls + atomic_load(&first->calls) > 0);
    free(first);
}

TEST(a_child_forked_while_others_log_can_log_and_set_a_sink)
{
    pthread_t threads[2];
    target_t t = {1, 0};
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(count_line, &t);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, log_much, NULL), 0);
    for (int round = 0; round < 100; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            alarm(10);
            weft_log_set_sink(keep_line, NULL);
            wefti_warn("child");
            _exit(strcmp(last_line, "child") ? 1 : 0);
        }
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    weft_log_set_sink(NULL, NULL);
}

/* --- the last error --------------------------------------------------------------------------------------------------- */

TEST(the_last_error_is_empty_until_there_is_one_and_fail_returns_its_status)
{
    CHECK_STR(weft_last_error(), "");
    CHECK_EQ(weft_last_error_status(), WEFT_OK);
    CHECK_EQ(wefti_fail(WEFT_ERR_LIMIT, "port %d is taken", 7), WEFT_ERR_LIMIT);
    CHECK_STR(weft_last_error(), "port 7 is taken");
    CHECK_EQ(weft_last_error_status(), WEFT_ERR_LIMIT);
    CHECK_EQ(wefti_fail(WEFT_ERR_INVALID, "while: %s", weft_last_error()), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "while: port 7 is taken");
}

static void *other_thread(void *arg)
{
    CHECK_STR(weft_last_error(), "");
    wefti_fail(WEFT_ERR_INVALID, "theirs");
    return arg;
}

TEST(each_thread_has_its_own_last_error)
{
    pthread_t thread;
    wefti_fail(WEFT_ERR_INVALID, "ours");
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    CHECK_STR(weft_last_error(), "ours");
}

TEST(a_long_detail_is_cut)
{
    static char text[5000];
    memset(text, 'y', sizeof text - 1);
    wefti_fail(WEFT_ERR_INVALID, "%s", text);
    size_t n = strlen(weft_last_error());
    CHECK(n > 400 && n < 600);
    CHECK_STR(weft_last_error() + n - 3, "...");
}
