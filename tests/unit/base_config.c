/* tests/unit/base_config.c - variables from environment, file and defaults: who wins, what is refused, and with which words. */
#include "base/config.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../test.h"
#include "base/alloc.h"
#include "base/nearest.h"
#include "base/rng.h"

extern char **environ;

/* --- helpers ---------------------------------------------------------------------------------------------------------- */

static char file_path[64];

static void remove_file(void)
{
    unlink(file_path);
}

/* A file with this text, named by WEFT_CONFIG_FILE; gone at the end of the test. */
static void use_file(const char *text, size_t n)
{
    remove_file(); /* an earlier test's, without forks */
    strcpy(file_path, "/tmp/weft-test-config-XXXXXX");
    int fd = mkstemp(file_path);
    CHECK(fd >= 0);
    atexit(remove_file);
    CHECK_EQ(write(fd, text, n), n);
    close(fd);
    setenv("WEFT_CONFIG_FILE", file_path, 1);
}

/* Nothing of whoever runs the tests may reach them. */
static void clean_environment(void)
{
    char name[256];
    for (char **e = environ; *e;) {
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "WEFT_", 5) || n >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = '\0';
        unsetenv(name);
        e = environ;
    }
}

static char lines[20][600];
static unsigned lines_n;

static void collect_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    CHECK_EQ(level, WEFT_LOG_WARN);
    if (lines_n < 20)
        snprintf(lines[lines_n], sizeof lines[0], "%s", line);
    lines_n++;
}

static void start(void)
{
    clean_environment();
    lines_n = 0;
    weft_log_set_sink(collect_line, NULL);
    weft_log_set_level(WEFT_LOG_WARN);
}

static void check_read_fails(const char *words)
{
    wefti_config_t config;
    memset(&config, 0x5a, sizeof config);
    wefti_config_t before = config;
    CHECK_EQ(wefti_config_read(&config), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), words);
    CHECK(!memcmp(&config, &before, sizeof config));
}

static void check_text_fails(const char *text, const char *words)
{
    wefti_config_t config;
    CHECK_EQ(wefti_config_parse("weft.conf", text, strlen(text), &config), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), words);
}

/* --- sizes, times, numbers -------------------------------------------------------------------------------------------- */

TEST(sizes_are_digits_and_a_power_of_1024)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"64k", 65536},
                {"64K", 65536},
                {"1M", 1 << 20},
                {"1m", 1 << 20},
                {"2G", 2u << 30},
                {"1T", UINT64_C(1) << 40},
                {"16KiB", 16384},
                {"007", 7},
                {"16777215T", 16777215 * (UINT64_C(1) << 40)}};
    static const char *const bad[] = {"",
                                      "k",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1 k",
                                      "1kk",
                                      "1x",
                                      "1.5k",
                                      "0x10",
                                      "1kB",
                                      "1i",
                                      "16777216T",
                                      "18446744073709551615",
                                      "99999999999999999999999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v;
        CHECK_OK(wefti_parse_size(good[i].text, &v));
        CHECK(v == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 77;
        if (wefti_parse_size(bad[i], &v) != WEFT_ERR_INVALID)
            FAIL("\"%s\" was accepted", bad[i]);
        CHECK_EQ(v, 77);
        CHECK(strstr(weft_last_error(), bad[i]));
    }
}

TEST(times_need_a_unit_unless_they_are_zero)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"0s", 0},
                {"250000ns", 250000},
                {"10us", 10000},
                {"50ms", 50000000},
                {"5s", UINT64_C(5000000000)},
                {"2m", UINT64_C(120000000000)},
                {"1h", UINT64_C(3600000000000)},
                {"18446744073709551614ns", UINT64_MAX - 1}};
    static const char *const bad[] = {"",
                                      "5",
                                      "s",
                                      "5 s",
                                      "-5s",
                                      "5S",
                                      "5min",
                                      "1.5s",
                                      "5s ",
                                      "auto",
                                      "18446744073709551615ns",
                                      "18446744073710s",
                                      "99999999999999999999h"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v;
        CHECK_OK(wefti_parse_time(good[i].text, &v));
        CHECK(v == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 77;
        if (wefti_parse_time(bad[i], &v) != WEFT_ERR_INVALID)
            FAIL("\"%s\" was accepted", bad[i]);
        CHECK_EQ(v, 77);
    }
    uint64_t v;
    CHECK_EQ(wefti_parse_time("5", &v), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "\"5\" is not a time: it has no unit (ns, us, ms, s, m, h)");
    CHECK_EQ(wefti_parse_time("5x", &v), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "\"5x\" is not a time: its unit \"x\" is none of ns, us, ms, s, m, h");
}

TEST(numbers_are_digits_that_fit_in_32_bits)
{
    uint64_t v;
    CHECK_OK(wefti_parse_number("4294967295", &v));
    CHECK_EQ(v, UINT32_MAX);
    CHECK_OK(wefti_parse_number("0", &v));
    CHECK_EQ(wefti_parse_number("4294967296", &v), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_parse_number("1k", &v), WEFT_ERR_INVALID);
    CHECK_EQ(wefti_parse_number("", &v), WEFT_ERR_INVALID);
}

/* --- defaults, environment, file -------------------------------------------------------------------------------------- */

TEST(without_anything_given_the_defaults_are_in_force)
{
    wefti_config_t c;
    start();
    CHECK_OK(wefti_config_read(&c));
    CHECK_STR(c.config_file, "");
    CHECK_STR(c.log, "warn");
    CHECK_STR(c.progress, "caller");
    CHECK_STR(c.transports, "all");
    CHECK_STR(c.shm_copy, "auto");
    CHECK(c.spin == UINT64_MAX);
    CHECK(c.heartbeat == UINT64_C(5000000000));
    CHECK_EQ(c.recv_window, 256 * 1024);
    CHECK_EQ(c.shm_ring, 64 * 1024);
    CHECK_EQ(c.max_endpoints, 65536);
    CHECK_STR(c.registry, "dir://");
    CHECK_STR(c.registry_dir, "");
    CHECK_STR(c.mem_server, "");
    CHECK_STR(c.launcher, "");
    CHECK_STR(c.element_uri, "");
    wefti_config_free(&c);
    CHECK(!c.store && !c.log);
    wefti_config_free(&c); /* a zeroed one */
    CHECK_EQ(lines_n, 0);
}

TEST(the_environment_beats_the_file_and_the_file_beats_the_default)
{
    static const char text[] = "heartbeat = 7s\nrecv_window = 512k\n";
    wefti_config_t c;
    start();
    use_file(text, sizeof text - 1);
    setenv("WEFT_HEARTBEAT", "3s", 1);
    CHECK_OK(wefti_config_read(&c));
    CHECK(c.heartbeat == UINT64_C(3000000000));
    CHECK_EQ(c.recv_window, 512 * 1024);
    CHECK_EQ(c.shm_ring, 64 * 1024);
    CHECK_STR(c.config_file, file_path);
    wefti_config_free(&c);
    unsetenv("WEFT_HEARTBEAT");
    CHECK_OK(wefti_config_read(&c)); /* read anew each time */
    CHECK(c.heartbeat == UINT64_C(7000000000));
    wefti_config_free(&c);
}

TEST(names_in_the_file_may_have_the_prefix_and_any_case)
{
    static const char text[] = "\xef\xbb\xbf# a comment\r\n"
                               "\r\n"
                               "  WEFT_Heartbeat=2s   # after a value\n"
                               "\tSPIN =\t10us\n"
                               "weft_name = node #7#\n"
                               "key_file = /etc/keys/a#b\n"
                               "Progress = THREAD\n"
                               "#\n"
                               "shm_copy =# nothing given\n"
                               "transports = a=#b\n"
                               "interfaces = eth0,eth1"; /* no newline at the end */
    wefti_config_t c;
    CHECK_OK(wefti_config_parse("weft.conf", text, sizeof text - 1, &c));
    CHECK(c.heartbeat == UINT64_C(2000000000));
    CHECK_EQ(c.spin, 10000);
    CHECK_STR(c.name, "node");
    CHECK_STR(c.key_file, "/etc/keys/a#b");
    CHECK_STR(c.progress, "thread"); /* as the list spells it */
    CHECK_STR(c.shm_copy, "auto");
    CHECK_STR(c.transports, "a=#b");
    CHECK_STR(c.interfaces, "eth0,eth1");
    wefti_config_free(&c);
}

TEST(an_empty_value_counts_only_where_empty_is_the_default)
{
    static const char text[] = "name = from-file\nheartbeat = 7s\nshm_ring =\n";
    wefti_config_t c;
    start();
    use_file(text, sizeof text - 1);
    setenv("WEFT_NAME", "", 1);
    setenv("WEFT_HEARTBEAT", "", 1);
    CHECK_OK(wefti_config_read(&c));
    CHECK_STR(c.name, "");
    CHECK(c.heartbeat == UINT64_C(7000000000));
    CHECK_EQ(c.shm_ring, 64 * 1024);
    wefti_config_free(&c);
}

TEST(auto_is_a_time_where_it_is_the_default_and_nowhere_else)
{
    wefti_config_t c;
    CHECK_OK(wefti_config_parse("f", "spin = AUTO", 11, &c));
    CHECK(c.spin == UINT64_MAX);
    wefti_config_free(&c);
    check_text_fails("heartbeat = auto",
                     "WEFT_HEARTBEAT is \"auto\" (weft.conf:1), but should be a time from 100ms to 1h, such as 5s");
}

TEST(a_kept_string_lives_as_long_as_the_snapshot)
{
    wefti_config_t c;
    char text[] = "mine";
    CHECK_OK(wefti_config_parse("f", "", 0, &c));
    c.name = wefti_config_keep(&c, text);
    text[0] = 'x';
    CHECK_STR(c.name, "mine");
    wefti_config_free(&c);
}

/* --- refusals --------------------------------------------------------------------------------------------------------- */

TEST(a_value_from_the_environment_that_is_not_fit_is_named_with_what_would_be)
{
    start();
    setenv("WEFT_HEARTBEAT", "5x", 1);
    check_read_fails("WEFT_HEARTBEAT is \"5x\" (environment), but should be a time from 100ms to 1h, such as 5s");
    setenv("WEFT_HEARTBEAT", "99ms", 1);
    check_read_fails("WEFT_HEARTBEAT is \"99ms\" (environment), but should be a time from 100ms to 1h, such as 5s");
    setenv("WEFT_HEARTBEAT", "100ms", 1);
    setenv("WEFT_SPIN", "2s", 1);
    check_read_fails("WEFT_SPIN is \"2s\" (environment), but should be auto, or a time from 0ns to 1s");
    setenv("WEFT_SPIN", "1s", 1);
    setenv("WEFT_SHM_RING", "48k", 1);
    check_read_fails("WEFT_SHM_RING is \"48k\" (environment), but should be a power of two, a size from 16k to 64M, such as 64k");
    setenv("WEFT_SHM_RING", "64M", 1);
    setenv("WEFT_MAX_ENDPOINTS", "0", 1);
    check_read_fails("WEFT_MAX_ENDPOINTS is \"0\" (environment), but should be a number from 1 to 16777215, such as 65536");
    setenv("WEFT_MAX_ENDPOINTS", "1", 1);
    setenv("WEFT_PROGRESS", "fast", 1);
    check_read_fails("WEFT_PROGRESS is \"fast\" (environment), but should be one of: caller thread loop");
    setenv("WEFT_PROGRESS", "call", 1); /* no abbreviations */
    check_read_fails("WEFT_PROGRESS is \"call\" (environment), but should be one of: caller thread loop");
    setenv("WEFT_PROGRESS", "loop", 1);
    wefti_config_t c;
    CHECK_OK(wefti_config_read(&c));
    wefti_config_free(&c);
}

TEST(a_value_from_the_file_that_is_not_fit_is_named_with_file_and_line)
{
    check_text_fails("# one\n\nrecv_window = 1k\n",
                     "WEFT_RECV_WINDOW is \"1k\" (weft.conf:3), but should be a size from 16k to 1G, such as 256k");
}

TEST(a_malformed_line_is_named_with_file_and_line)
{
    check_text_fails("heartbeat = 5s\nwhat is this # indeed\n", "weft.conf:2: \"what is this\" is not NAME = value");
    check_text_fails("= 5s", "weft.conf:1: \"= 5s\" has no name before the =");
    check_text_fails("heart beat = 5s",
                     "weft.conf:1: \"heart beat = 5s\" has a name with something else than letters, digits and _ in it");
    check_text_fails("[section]", "weft.conf:1: \"[section]\" is not NAME = value");
    wefti_config_t c;
    CHECK_EQ(wefti_config_parse("weft.conf", "name = a\0b\n", 11, &c), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "weft.conf:1: \"name = a\" has a zero byte");
    CHECK_OK(wefti_config_parse("weft.conf", "# a\0b\n", 6, &c)); /* nobody reads comments */
    wefti_config_free(&c);
}

TEST(a_variable_given_twice_in_the_file_is_refused)
{
    check_text_fails("spin = 1us\nname = x\nWEFT_SPIN = 2us\n", "weft.conf:3: WEFT_SPIN was given before, on line 1");
}

TEST(a_file_that_names_a_file_is_refused)
{
    check_text_fails("config_file = other", "weft.conf:1: config_file belongs in the environment: a file cannot name another");
}

TEST(a_file_that_cannot_be_read_is_named_with_the_reason)
{
    start();
    setenv("WEFT_CONFIG_FILE", "/nonexistent/weft.conf", 1);
    check_read_fails("WEFT_CONFIG_FILE is \"/nonexistent/weft.conf\" (environment), but should be a readable file: "
                     "No such file or directory");
    setenv("WEFT_CONFIG_FILE", "/tmp", 1);
    check_read_fails("WEFT_CONFIG_FILE is \"/tmp\" (environment), but should be a readable file: it is not a regular file");
    setenv("WEFT_CONFIG_FILE", "/dev/zero", 1);
    check_read_fails("WEFT_CONFIG_FILE is \"/dev/zero\" (environment), but should be a readable file: it is not a regular file");
}

TEST(a_fifo_in_place_of_the_file_does_not_block)
{
    start();
    use_file("", 0);
    CHECK_EQ(unlink(file_path), 0);
    CHECK_EQ(mkfifo(file_path, 0600), 0);
    wefti_config_t c;
    double before = test_now();
    CHECK_EQ(wefti_config_read(&c), WEFT_ERR_INVALID);
    CHECK(test_now() - before < 5);
    CHECK(strstr(weft_last_error(), "it is not a regular file"));
}

TEST(a_file_of_more_than_a_mebibyte_is_refused)
{
    start();
    use_file("#", 1);
    CHECK_EQ(truncate(file_path, (1 << 20) + 1), 0);
    wefti_config_t c;
    CHECK_EQ(wefti_config_read(&c), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "it is larger than 1 MiB"));
}

TEST(without_file_descriptors_the_status_says_limit)
{
    start();
    use_file("", 0);
    struct rlimit before, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    wefti_config_t c;
    CHECK_EQ(wefti_config_read(&c), WEFT_ERR_LIMIT);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0); /* a sanitizer wants to look for leaks at the end */
    CHECK(strstr(weft_last_error(), "Too many open files"));
}

static unsigned fail_at, allocations;

static int fails_once(size_t n)
{
    (void)n;
    return allocations++ == fail_at;
}

TEST(running_out_of_memory_anywhere_leaves_nothing_behind)
{
    static const char text[] = "name = x\nspin = 5us\n";
    start();
    use_file(text, sizeof text - 1);
    for (fail_at = 0;; fail_at++) {
        CHECK(fail_at < 100);
        wefti_config_t c;
        allocations = 0;
        wefti_alloc_fails = fails_once;
        weft_status_t st = wefti_config_read(&c);
        wefti_alloc_fails = NULL;
        if (!st) {
            wefti_config_free(&c);
            break;
        }
        CHECK_EQ(st, WEFT_ERR_NOMEM);
    }
    CHECK(fail_at >= 8); /* the file and every string */
}

/* --- names we do not know --------------------------------------------------------------------------------------------- */

TEST(an_unknown_name_is_warned_about_once_with_the_nearest_name)
{
    static const char text[] = "heart_beat = 5s\nrecv_windwo = 1M\n";
    wefti_config_t c;
    char expected[3][600];
    start();
    use_file(text, sizeof text - 1);
    setenv("WEFT_HEARBEAT", "5s", 1);
    snprintf(expected[0], 600, "WEFT_HEARBEAT (environment) is no variable of ours: did you mean WEFT_HEARTBEAT?");
    snprintf(expected[1], 600, "heart_beat (%s:1) is no variable of ours: did you mean WEFT_HEARTBEAT?", file_path);
    snprintf(expected[2], 600, "recv_windwo (%s:2) is no variable of ours: did you mean WEFT_RECV_WINDOW?", file_path);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(wefti_config_read(&c));
        wefti_config_free(&c);
        CHECK_EQ(lines_n, 3);
    }
    for (int i = 0; i < 3; i++)
        CHECK_STR(lines[i], expected[i]);
    setenv("WEFT_ZZZZZZZZ", "1", 1);
    CHECK_OK(wefti_config_read(&c));
    wefti_config_free(&c);
    CHECK_EQ(lines_n, 4);
    CHECK_STR(lines[3], "WEFT_ZZZZZZZZ (environment) is no variable of ours");
}

TEST(a_flood_of_unknown_names_is_warned_about_for_a_while_only)
{
    wefti_config_t c;
    start();
    for (int i = 0; i < 500; i++) {
        char name[40];
        snprintf(name, sizeof name, "WEFT_QQ_%d", i);
        setenv(name, "1", 1);
    }
    CHECK_OK(wefti_config_read(&c));
    wefti_config_free(&c);
    CHECK(lines_n >= 32 && lines_n <= 128);
}

static unsigned seen_n;
static bool saw_wrong_case, saw_far, saw_in_file;

static void see_unknown(const weft_config_var_t *var, void *user)
{
    CHECK(user == &seen_n);
    seen_n++;
    if (!strcmp(var->name, "WEFT_heartbeat")) {
        CHECK_STR(var->value, "WEFT_HEARTBEAT");
        CHECK_STR(var->source, "environment");
        saw_wrong_case = true;
    } else if (!strcmp(var->name, "WEFT_XYZZY_PLUGH")) {
        CHECK(!var->value);
        saw_far = true;
    } else {
        CHECK_STR(var->name, "sppin");
        CHECK_STR(var->value, "WEFT_SPIN");
        CHECK_STR(var->source, file_path);
        saw_in_file = true;
    }
}

TEST(unknown_names_can_be_listed)
{
    start();
    use_file("sppin = 1us\n", 12);
    setenv("WEFT_heartbeat", "5s", 1);
    setenv("WEFT_XYZZY_PLUGH", "1", 1);
    setenv("WEFTY", "not ours at all", 1);
    CHECK_OK(weft_config_unknown_each(see_unknown, &seen_n));
    CHECK_EQ(seen_n, 3);
    CHECK(saw_wrong_case && saw_far && saw_in_file);
    CHECK_EQ(lines_n, 0);
    CHECK_EQ(weft_config_unknown_each(NULL, NULL), WEFT_ERR_INVALID);
}

TEST(the_distance_of_words_counts_slips)
{
    CHECK_EQ(wefti_word_distance("spin", "spin"), 0);
    CHECK_EQ(wefti_word_distance("SPIN", "spin"), 0);
    CHECK_EQ(wefti_word_distance("spni", "spin"), 1);
    CHECK_EQ(wefti_word_distance("spi", "spin"), 1);
    CHECK_EQ(wefti_word_distance("sspin", "spin"), 1);
    CHECK_EQ(wefti_word_distance("spon", "spin"), 1);
    CHECK_EQ(wefti_word_distance("", "spin"), 4);
    CHECK_EQ(wefti_word_distance("spin", ""), 4);
    CHECK_EQ(wefti_word_distance("", ""), 0);
    CHECK_EQ(wefti_word_distance("abcdef", "badcfe"), 3);
    char longest[65];
    memset(longest, 'a', 64);
    longest[64] = '\0';
    CHECK(wefti_word_distance(longest, "a") == SIZE_MAX);
    CHECK_EQ(wefti_word_distance(longest + 1, "a"), 62);
}

TEST(the_distance_of_random_words_is_a_distance)
{
    wefti_rng_t rng = {5};
    char words[60][10];
    for (int i = 0; i < 60; i++) {
        size_t n = (size_t)wefti_rng_below(&rng, 9);
        for (size_t k = 0; k < n; k++)
            words[i][k] = (char)('a' + wefti_rng_below(&rng, 3));
        words[i][n] = '\0';
    }
    for (int i = 0; i < 60; i++)
        for (int j = 0; j < 60; j++) {
            size_t d = wefti_word_distance(words[i], words[j]), a = strlen(words[i]), b = strlen(words[j]);
            CHECK_EQ(d, wefti_word_distance(words[j], words[i]));
            CHECK_EQ(d == 0, !strcmp(words[i], words[j]));
            CHECK(d <= (a > b ? a : b) && d >= (a > b ? a - b : b - a));
        }
}

/* --- listing ---------------------------------------------------------------------------------------------------------- */

static void see_variable(const weft_config_var_t *var, void *user)
{
    unsigned *n = user;
    static const char *const names[] = {
#define NAME(field, kind, def, range, doc) #field,
        WEFTI_CONFIG_LIST(NAME)
#undef NAME
    };
    CHECK(*n < sizeof names / sizeof names[0]);
    CHECK(!strncmp(var->name, "WEFT_", 5) && !strcasecmp(var->name + 5, names[*n]));
    CHECK(var->doc && *var->doc && var->value && var->source);
    if (!strcmp(var->name, "WEFT_KEY_FILE")) {
        CHECK_STR(var->value, "(set)");
        CHECK_STR(var->source, file_path);
    } else if (!strcmp(var->name, "WEFT_SPIN")) {
        CHECK_STR(var->value, "3us");
        CHECK_STR(var->source, "environment");
    } else if (!strcmp(var->name, "WEFT_HEARTBEAT")) {
        CHECK_STR(var->value, "5s");
        CHECK_STR(var->source, "default");
    }
    (*n)++;
}

TEST(every_variable_is_listed_with_its_value_and_source_and_the_key_file_is_not_shown)
{
    unsigned n = 0;
    start();
    use_file("key_file = /secret/place\n", 25);
    setenv("WEFT_SPIN", "3us", 1);
    CHECK_OK(weft_config_each(see_variable, &n));
    CHECK_EQ(n, 39);
    CHECK_EQ(weft_config_each(NULL, NULL), WEFT_ERR_INVALID);
}

static void count_variable(const weft_config_var_t *var, void *user)
{
    if (!strcmp(var->name, "WEFT_SPIN"))
        CHECK_STR(var->value, "nonsense");
    if (!strcmp(var->name, "WEFT_KEY_FILE"))
        CHECK_STR(var->value, "");
    ++*(unsigned *)user;
}

TEST(variables_that_are_not_fit_are_listed_as_they_are_and_the_status_says_so)
{
    unsigned n = 0;
    start();
    setenv("WEFT_SPIN", "nonsense", 1);
    CHECK_EQ(weft_config_each(count_variable, &n), WEFT_ERR_INVALID);
    CHECK_EQ(n, 39);
    CHECK(strstr(weft_last_error(), "WEFT_SPIN is \"nonsense\""));
    n = 0;
    setenv("WEFT_CONFIG_FILE", "/nonexistent", 1);
    CHECK_EQ(weft_config_each(count_variable, &n), WEFT_ERR_INVALID);
    CHECK_EQ(n, 39);
    CHECK(strstr(weft_last_error(), "/nonexistent"));
}
