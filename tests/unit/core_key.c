/* tests/unit/core_key.c - what bytes mean as a pre-shared key: typed ones are stretched, once per process; random ones are
 * taken as they are.
 *
 * ctest: label=thread */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <weft/weft.h>

#include "core/key.h"

#define TYPED "correct horse battery staple"
#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"

static void make(const char *text, uint8_t key[WEFTI_KEY_SIZE])
{
    wefti_keys_t *keys;
    CHECK_OK(wefti_keys_make("the key", text, strlen(text), false, &keys));
    CHECK_EQ(keys->n, 1);
    CHECK_STR(keys->at[0].name, "");
    memcpy(key, keys->at[0].secret, WEFTI_KEY_SIZE);
    wefti_keys_free(keys);
}

static void make_of(const void *bytes, bool random, uint8_t key[WEFTI_KEY_SIZE])
{
    wefti_keys_t *keys;
    CHECK_OK(wefti_keys_make("the key", bytes, WEFTI_KEY_SIZE, random, &keys));
    memcpy(key, keys->at[0].secret, WEFTI_KEY_SIZE);
    wefti_keys_free(keys);
}

TEST(a_typed_key_goes_through_argon2id_with_the_salt_and_the_cost_that_are_documented)
{
    /* Python: Argon2id(salt=blake2b(b"weft pre-shared key 1", digest_size=16).digest(), length=32, iterations=3, lanes=1,
     * memory_cost=32768).derive(b"correct horse battery staple") */
    static const char expected[] = "177786315ceab01674b45d0108fc2236a14c65d14487e0abe49f11cba2d57fcf";
    uint8_t key[WEFTI_KEY_SIZE], fast[WEFTI_KEY_SIZE];
    char hex[2 * WEFTI_KEY_SIZE + 1];
    make(TYPED, key);
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, key, sizeof key), expected);
    crypto_generichash(fast, sizeof fast, (const uint8_t *)TYPED, strlen(TYPED), NULL, 0);
    CHECK(memcmp(key, fast, sizeof key));
}

TEST(other_bytes_make_another_key)
{
    uint8_t a[WEFTI_KEY_SIZE], b[WEFTI_KEY_SIZE], c[WEFTI_KEY_SIZE];
    make(TYPED, a);
    make(TYPED "!", b);
    make(TYPED "\n", c);
    CHECK(memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a) && memcmp(b, c, sizeof b));
}

TEST(a_process_stretches_a_key_once)
{
    uint8_t a[WEFTI_KEY_SIZE], b[WEFTI_KEY_SIZE], other[WEFTI_KEY_SIZE];
    make(TYPED, a);
    CHECK_EQ(wefti_key_stretches(), 1);
    for (int i = 0; i < 1000; i++) {
        memset(b, 0, sizeof b);
        make(TYPED, b);
        CHECK(!memcmp(a, b, sizeof a));
    }
    CHECK_EQ(wefti_key_stretches(), 1);
    make("another key, also typed", other);
    CHECK_EQ(wefti_key_stretches(), 2);
    make(TYPED, b);
    CHECK(!memcmp(a, b, sizeof a));
    CHECK_EQ(wefti_key_stretches(), 2);
}

TEST(of_many_keys_the_last_are_kept_and_all_are_right)
{
    uint8_t first[WEFTI_KEY_SIZE], again[WEFTI_KEY_SIZE], last[WEFTI_KEY_SIZE];
    char text[32];
    make("key number 0, long enough", first);
    for (int i = 1; i <= 8; i++) {
        snprintf(text, sizeof text, "key number %d, long enough", i);
        make(text, last);
    }
    uint64_t before = wefti_key_stretches();
    make(text, again);
    CHECK(!memcmp(last, again, sizeof last));
    CHECK_EQ(wefti_key_stretches(), before);
    make("key number 0, long enough", again); /* the one that had to go */
    CHECK(!memcmp(first, again, sizeof first));
    CHECK_EQ(wefti_key_stretches(), before + 1);
}

static void *open_beside(void *key)
{
    make(TYPED, (uint8_t *)key);
    return NULL;
}

TEST(threads_that_ask_at_once_stretch_once)
{
    enum { N = 8 };
    pthread_t threads[N];
    uint8_t keys[N][WEFTI_KEY_SIZE];
    for (int i = 0; i < N; i++)
        CHECK(!pthread_create(&threads[i], NULL, open_beside, keys[i]));
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < N; i++)
        CHECK(!memcmp(keys[0], keys[i], WEFTI_KEY_SIZE));
    CHECK_EQ(wefti_key_stretches(), 1);
}

static volatile bool stop;

static void *stretch_on(void *arg)
{
    char text[64];
    uint8_t key[WEFTI_KEY_SIZE];
    (void)arg;
    for (unsigned i = 0; !stop; i++) {
        snprintf(text, sizeof text, "one key after another: %u", i);
        make(text, key);
    }
    return NULL;
}

TEST(a_child_forked_while_a_thread_stretches_has_nothing_of_it_and_comes_to_the_same_key)
{
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
    SKIP("a child of several threads has locks of the sanitizer that nobody gives back");
#endif
    pthread_t thread;
    uint8_t mine[WEFTI_KEY_SIZE], theirs[WEFTI_KEY_SIZE];
    make(TYPED, mine);
    CHECK(!pthread_create(&thread, NULL, stretch_on, NULL));
    for (int i = 0; i < 5; i++) {
        int fds[2], status;
        usleep(5000 * (useconds_t)i);
        CHECK(!pipe(fds));
        pid_t pid = fork();
        if (!pid) {
            alarm(60);
            uint64_t before = wefti_key_stretches();
            make(TYPED, theirs);
            CHECK_EQ(wefti_key_stretches(), before + 1);
            _exit(write(fds[1], theirs, sizeof theirs) != (ssize_t)sizeof theirs);
        }
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
        CHECK_EQ(read(fds[0], theirs, sizeof theirs), sizeof theirs);
        CHECK(!memcmp(mine, theirs, sizeof mine));
        close(fds[0]);
        close(fds[1]);
    }
    stop = true;
    pthread_join(thread, NULL);
}

/* --- random keys ---------------------------------------------------------------------------------------------------------- */

TEST(a_key_of_weft_key_new_is_used_as_it_is_in_the_options_and_in_a_file)
{
    static const char *const forms[] = {"weft-key-1 " HEX, "weft-key-1 " HEX "\n", "weft-key-1 " HEX "\r\n"};
    uint8_t bytes[WEFTI_KEY_SIZE], key[WEFTI_KEY_SIZE];
    char path[64];
    for (int i = 0; i < WEFTI_KEY_SIZE; i++)
        bytes[i] = (uint8_t)(i < 31 ? i : 255);
    snprintf(path, sizeof path, "core_key.%d", (int)getpid());
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        memset(key, 0, sizeof key);
        make(forms[i], key);
        CHECK(!memcmp(key, bytes, sizeof key));
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        CHECK_EQ(write(fd, forms[i], strlen(forms[i])), strlen(forms[i]));
        close(fd);
        wefti_keys_t *keys;
        CHECK_OK(wefti_keys_read(path, false, &keys));
        CHECK(keys->n == 1 && !memcmp(keys->at[0].secret, bytes, sizeof bytes));
        wefti_keys_free(keys);
    }
    unlink(path);
    make_of(bytes, true, key);
    CHECK(!memcmp(key, bytes, sizeof key));
    CHECK_EQ(wefti_key_stretches(), 0);
    make_of(bytes, false, key); /* nobody said that they are random */
    CHECK(memcmp(key, bytes, sizeof key));
    CHECK_EQ(wefti_key_stretches(), 1);
}

TEST(half_a_random_key_is_refused_and_not_taken_for_a_typed_one)
{
    static const char *const wrong[] = {
        "weft-key-1 00010203",
        "weft-key-1 " HEX "00",
        "weft-key-1 " HEX "\v",
        "weft-key-1  " HEX,
        "weft-key-2 " HEX,
        "weft-key-1" HEX,
        "weft-key-1 x00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff",
        "weft-key-1 " HEX "\nweft-key-1 0001",
        "weft-key-1 " HEX "\nno key at all, but long enough",
        "# a comment\n\nweft-key-1 0001",
        "# a comment\n\nweft-ke",
        "weft-key-1 " HEX " of somebody",
        "weft-key-1 " HEX " somebody's",
        "weft-key-1 " HEX " n\xc3\xa9",
        "weft-key-1 " HEX " 1234567890123456789012345678901234567890123456789012345678901234",
        "weft-key-of-ours",
    };
    wefti_keys_t *keys = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ(wefti_keys_make("the key", wrong[i], strlen(wrong[i]), false, &keys), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), "weft key new") && !strstr(weft_last_error(), "0001"));
        CHECK(!keys);
    }
    CHECK_EQ(wefti_key_stretches(), 0);
}

/* --- lists ---------------------------------------------------------------------------------------------------------------- */

#define HEX2 "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"

TEST(a_list_of_keys_has_comments_and_names_and_keeps_its_order)
{
    static const char text[] = "# ours\n\n  \t\nweft-key-1 " HEX2 "  mill-3.of_us\t \r\n#weft-key-1 0001\nweft-key-1 " HEX;
    wefti_keys_t *keys;
    CHECK(wefti_keys_are_list(text, sizeof text - 1));
    CHECK_OK(wefti_keys_make("the key", text, sizeof text - 1, false, &keys));
    CHECK_EQ(keys->n, 2);
    CHECK_STR(keys->at[0].name, "mill-3.of_us");
    CHECK_STR(keys->at[1].name, "");
    CHECK_EQ(keys->at[0].secret[0], 0xff);
    CHECK_EQ(keys->at[1].secret[0], 0);
    CHECK_EQ(wefti_key_stretches(), 0);
    wefti_keys_free(keys);
}

TEST(a_key_twice_or_too_many_keys_or_a_reserved_name_are_refused_and_the_lines_are_named)
{
    static const char twice[] = "weft-key-1 " HEX " a\n# between\nweft-key-1 " HEX " b\n";
    static const char nameless[] = "weft-key-1 " HEX " anonymous\n";
    static char many[(WEFTI_KEYS_MOST + 1) * 80];
    wefti_keys_t *keys = NULL;
    CHECK_EQ(wefti_keys_make("the key", twice, sizeof twice - 1, false, &keys), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "lines 1 and 3"));
    CHECK_EQ(wefti_keys_make("the key", nameless, sizeof nameless - 1, false, &keys), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "line 1 of the key") && strstr(weft_last_error(), "who has none"));
    for (int i = 0; i <= WEFTI_KEYS_MOST; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "weft-key-1 %04x%s\n", i, HEX + 4);
    CHECK_EQ(wefti_keys_make("the key", many, strlen(many), false, &keys), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "256"));
    many[WEFTI_KEYS_MOST * (strlen("weft-key-1 \n") + 64)] = 0;
    CHECK_OK(wefti_keys_make("the key", many, strlen(many), false, &keys));
    CHECK_EQ(keys->n, WEFTI_KEYS_MOST);
    wefti_keys_free(keys);
}

TEST(a_typed_key_may_begin_as_a_comment_does_and_stays_the_key_it_was)
{
    static const char typed[] = "# this is what somebody typed";
    wefti_keys_t *keys;
    CHECK(!wefti_keys_are_list(typed, sizeof typed - 1));
    CHECK_OK(wefti_keys_make("the key", typed, sizeof typed - 1, false, &keys));
    CHECK_EQ(wefti_key_stretches(), 1);
    wefti_keys_free(keys);
}

TEST(a_file_that_had_a_list_is_not_taken_for_a_typed_key)
{
    char path[64];
    wefti_keys_t *keys = NULL;
    snprintf(path, sizeof path, "core_key.%d", (int)getpid());
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK_EQ(write(fd, "# the head of a file\n", 21), 21);
    close(fd);
    CHECK_EQ(wefti_keys_read(path, true, &keys), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "has none now"));
    CHECK_OK(wefti_keys_read(path, false, &keys));
    wefti_keys_free(keys);
    unlink(path);
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

TEST(where_there_is_no_memory_to_stretch_with_that_is_said)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer needs the addresses that are taken away here");
#endif
    struct rlimit limit = {64 << 20, 64 << 20};
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt = NULL;
    opts.key = TYPED;
    opts.key_len = strlen(TYPED);
    opts.transports = "tcp";
    CHECK_OK(weft_runtime_open(NULL, &rt)); /* what is made once is there */
    CHECK_OK(weft_runtime_close(rt));
    rt = NULL;
    /* what is used already stays; most of 64 MiB is */
    void *taken = mmap(NULL, 40 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(taken != MAP_FAILED);
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    CHECK_EQ(weft_runtime_open(&opts, &rt), WEFT_ERR_NOMEM);
    CHECK(strstr(weft_last_error(), "32 MiB") && strstr(weft_last_error(), "weft key new") &&
          !strstr(weft_last_error(), "horse"));
    CHECK(!rt);
    uint8_t key[WEFTI_KEY_SIZE];
    make("weft-key-1 " HEX, key); /* as it says */
}

static bool in_memory(const uint8_t *inverted)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int mem = open("/proc/self/mem", O_RDONLY);
    char line[512];
    bool found = false;
    CHECK(maps && mem >= 0);
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || strncmp(rights, "rw", 2) || to - from > (256ul << 20))
            continue;
        static uint8_t page[4096 + WEFTI_KEY_SIZE]; /* with the end of the page before */
        for (unsigned long at = from; at < to && !found; at += 4096) {
            if (at > (unsigned long)page - 8192 && at < (unsigned long)page + 8192)
                continue; /* this very copy */
            if (pread(mem, page + WEFTI_KEY_SIZE, 4096, (off_t)at) != 4096)
                break;
            for (int i = 0; i <= 4096 && !found; i++) {
                int same = 0;
                while (same < WEFTI_KEY_SIZE && (page[i + same] ^ inverted[same]) == 0xff)
                    same++;
                found = same == WEFTI_KEY_SIZE;
            }
            memcpy(page, page + 4096, WEFTI_KEY_SIZE);
        }
    }
    fclose(maps);
    close(mem);
    return found;
}

TEST(after_the_last_close_the_key_is_nowhere_in_memory)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer's maps are too large to look through");
#endif
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    uint8_t inverted[WEFTI_KEY_SIZE], key[WEFTI_KEY_SIZE];
    opts.key = TYPED;
    opts.key_len = strlen(TYPED);
    opts.transports = "tcp";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    for (int i = 0; i < WEFTI_KEY_SIZE; i++)
        inverted[i] = (uint8_t)~rt->keys->at[0].secret[i];
    CHECK(in_memory(inverted)); /* it is a look that finds it */
    CHECK_OK(weft_runtime_close(rt));
    CHECK(!in_memory(inverted));
    make(TYPED, key); /* and yet it is known */
    CHECK_EQ(wefti_key_stretches(), 1);
}
