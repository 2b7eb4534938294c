/* tests/unit/core_opts.c - options over configuration: what is checked, what wins, and the key. */
#include "test.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>

#include "fake_fabric.h"

static wefti_config_t defaults(void)
{
    wefti_config_t config;
    CHECK_OK(wefti_config_parse("test", "", 0, &config));
    return config;
}

static void refused(const weft_runtime_opts_t *opts, const char *word)
{
    wefti_config_t config = defaults();
    CHECK_EQ(wefti_runtime_merge_opts(opts, &config), WEFT_ERR_INVALID);
    if (!strstr(weft_last_error(), word))
        FAIL("\"%s\" does not say \"%s\"", weft_last_error(), word);
    wefti_config_free(&config);
}

TEST(options_win_over_configuration_and_zero_means_as_configured)
{
    const char *text = "heartbeat = 1s\nrecv_window = 1M\nname = of-the-file\nprogress = thread\n";
    wefti_config_t config;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    CHECK_OK(wefti_config_parse("test", text, strlen(text), &config));
    CHECK_OK(wefti_runtime_merge_opts(NULL, &config));
    opts.heartbeat_ns = 2 * WEFT_SECOND;
    opts.name = "mine";
    opts.progress = WEFT_PROGRESS_LOOP;
    opts.transports = "shm";
    CHECK_OK(wefti_runtime_merge_opts(&opts, &config));
    CHECK_OK(wefti_runtime_merge_opts(&opts, &config)); /* twice is once */
    CHECK_EQ(config.heartbeat, 2 * WEFT_SECOND);
    CHECK_EQ(config.recv_window, 1 << 20);
    CHECK_STR(config.name, "mine");
    CHECK_STR(config.progress, "loop");
    CHECK_STR(config.transports, "shm");
    CHECK_STR(config.interfaces, "all");
    wefti_config_free(&config);
}

TEST(values_out_of_range_are_refused_by_name)
{
    char long_name[200];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
#define REFUSED(field, value, word) \
    do { \
        weft_runtime_opts_t bad = o; \
        bad.field = value; \
        refused(&bad, word); \
    } while (0)
    REFUSED(size, 0, "size is 0");
    REFUSED(size, 1u << 20, "size");
    REFUSED(progress, (weft_progress_mode_t)7, "7 is no progress mode");
    REFUSED(heartbeat_ns, 1000, "heartbeat_ns is 1000");
    REFUSED(spin_ns, 2 * WEFT_SECOND, "spin_ns");
    REFUSED(connect_timeout_ns, 1, "connect_timeout_ns");
    REFUSED(close_timeout_ns, 1, "close_timeout_ns");
    REFUSED(recv_window, 1, "recv_window");
    REFUSED(shm_ring, 20000, "power of two");
    REFUSED(max_endpoints, 1u << 30, "max_endpoints");
    REFUSED(name, long_name, "199 bytes");
    REFUSED(key, "short", "0 bytes");
    REFUSED(key_len, 5, "NULL");
    REFUSED(key_random, true, "no key");
    o.key = "0123456789abcdef";
    o.key_len = 16;
    REFUSED(key_random, true, "16 bytes");
    REFUSED(key_len, 65537, "65537 bytes");
}

TEST(an_older_callers_shorter_struct_is_one_with_zeros_at_its_end_and_a_newer_ones_longer_needs_them)
{
    struct {
        weft_runtime_opts_t opts;
        char more[16];
    } newer = {0};
    wefti_config_t config = defaults();
    newer.opts.size = sizeof newer;
    newer.opts.max_endpoints = 5;
    CHECK_OK(wefti_runtime_merge_opts(&newer.opts, &config));
    CHECK_EQ(config.max_endpoints, 5);
    newer.more[3] = 1;
    refused(&newer.opts, "does not know");
    newer.opts.size = offsetof(weft_runtime_opts_t, max_endpoints);
    newer.opts.max_endpoints = 1u << 30; /* not his */
    CHECK_OK(wefti_runtime_merge_opts(&newer.opts, &config));
    wefti_config_free(&config);
}

/* --- a runtime opened with them -------------------------------------------------------------------------------------------- */

static void write_key(const char *path, const char *bytes, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, bytes, strlen(bytes)), strlen(bytes));
    CHECK(!fchmod(fd, mode));
    close(fd);
}

static weft_status_t open_with(const weft_runtime_opts_t *opts, const char *key_file, weft_runtime_t **rt_out)
{
    weft_runtime_t *donor = fake_open(0, 0); /* for its fabric's functions */
    fake_fabric_t *f = calloc(1, sizeof *f);
    *f = (fake_fabric_t){.base = {.ops = donor->fabric->ops}, .fd = -1, .virtual_time = true};
    wefti_list_init(&f->pending);
    wefti_list_init(&f->stubborn);
    CHECK_OK(weft_runtime_close(donor));
    wefti_config_t config = defaults();
    if (key_file)
        config.key_file = key_file;
    return wefti_runtime_open_on(opts, &config, &f->base, rt_out);
}

TEST(the_name_is_program_and_pid_unless_it_is_given)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    char pid[32];
    snprintf(pid, sizeof pid, "-%d", (int)getpid());
    CHECK_OK(open_with(NULL, NULL, &rt));
    CHECK(strstr(weft_runtime_name(rt), "core_opts") && strstr(weft_runtime_name(rt), pid));
    CHECK(!rt->has_key);
    CHECK_EQ(rt->mode, WEFT_PROGRESS_CALLER);
    CHECK_EQ(rt->spin_ns, 2 * WEFT_MILLISECOND);
    CHECK_OK(weft_runtime_close(rt));
    opts.name = "somebody";
    opts.spin_ns = 1234;
    opts.progress = WEFT_PROGRESS_THREAD; /* not started here */
    CHECK_OK(open_with(&opts, NULL, &rt));
    CHECK_STR(weft_runtime_name(rt), "somebody");
    CHECK_EQ(rt->spin_ns, 1234);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_key_file_and_the_same_bytes_in_the_options_make_the_same_key)
{
    weft_runtime_t *a, *b, *c;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    char path[64];
    snprintf(path, sizeof path, "core_opts.%d.key", (int)getpid());
    write_key(path, "0123456789abcdef", 0600);
    opts.key = "0123456789abcdef";
    opts.key_len = 16;
    CHECK_OK(open_with(&opts, NULL, &a));
    CHECK_OK(open_with(NULL, path, &b));
    opts.key = "0123456789abcdeX";
    CHECK_OK(open_with(&opts, path, &c)); /* options win */
    unlink(path);
    CHECK(a->has_key && b->has_key && c->has_key);
    CHECK(!memcmp(a->keys->at[0].secret, b->keys->at[0].secret, 32));
    CHECK(memcmp(a->keys->at[0].secret, c->keys->at[0].secret, 32));
    CHECK(memcmp(a->keys->at[0].secret, "0123456789abcdef", 16));
    CHECK_OK(weft_runtime_close(a));
    CHECK_OK(weft_runtime_close(b));
    CHECK_OK(weft_runtime_close(c));
}

TEST(random_bytes_of_the_program_are_the_key)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.key = "0123456789abcdef0123456789abcdef";
    opts.key_len = 32;
    opts.key_random = true;
    CHECK_OK(open_with(&opts, NULL, &rt));
    CHECK(rt->has_key && !memcmp(rt->keys->at[0].secret, opts.key, 32));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_typed_key_is_more_than_a_fast_hash_of_it)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    uint8_t fast[32];
    opts.key = "0123456789abcdef";
    opts.key_len = 16;
    CHECK_OK(open_with(&opts, NULL, &rt));
    crypto_generichash(fast, sizeof fast, (const uint8_t *)"0123456789abcdef", 16, NULL, 0);
    CHECK(memcmp(rt->keys->at[0].secret, fast, sizeof fast));
    CHECK_OK(weft_runtime_close(rt));
}

TEST(key_files_that_others_can_read_are_too_short_or_missing_are_refused)
{
    weft_runtime_t *rt = NULL;
    char path[64];
    snprintf(path, sizeof path, "core_opts.%d.key", (int)getpid());
    write_key(path, "0123456789abcdef", 0604);
    CHECK_EQ(open_with(NULL, path, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "604"));
    write_key(path, "0123456789abcde", 0600);
    CHECK_EQ(open_with(NULL, path, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "15 bytes"));
    CHECK(!strstr(weft_last_error(), "0123"));
    unlink(path);
    CHECK_EQ(open_with(NULL, path, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), path));
    CHECK_EQ(open_with(NULL, "/", &rt), WEFT_ERR_INVALID);
    CHECK(!rt);
}

TEST(a_fabric_is_trusted_only_with_a_key)
{
    weft_runtime_t *rt = NULL;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.trusted = true;
    CHECK_EQ(open_with(&opts, NULL, &rt), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "WEFT_TRUSTED") && strstr(weft_last_error(), "WEFT_KEY_FILE"));
    opts.key = "0123456789abcdef";
    opts.key_len = 16;
    CHECK_OK(open_with(&opts, NULL, &rt));
    CHECK(wefti_trusted(&rt->config));
    CHECK_OK(weft_runtime_close(rt));
    opts.trusted = false;
    CHECK_OK(open_with(&opts, NULL, &rt));
    CHECK(!wefti_trusted(&rt->config));
    CHECK_OK(weft_runtime_close(rt));
}
