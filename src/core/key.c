/* core/key.c - the pre-shared keys: a typed one is stretched, random ones are used as they are.
 *
 * An attacker who records a hello can try keys against it. A key that a person chose would soon be found, so it goes through
 * Argon2id: 32 MiB and three passes, about 60 ms, for each guess as well. Both sides must get the same key, so the salt is a
 * constant: the hash of a label.
 *
 * 32 random bytes cannot be guessed, and need none of it. They are recognised by their prefix: "weft-key-1 " and 64 hex
 * digits, as `weft key new` writes them to a file, and perhaps a name. There may be several lines of them, blank lines, and
 * comments that begin with '#'. Anything else whose first line begins with "weft-key-" is refused: half a key must not become
 * another key. A program that makes keys itself says so (opts.key_random).
 *
 * A process stretches a key once: the result is kept, for the runtimes that are opened later. It is kept XORed with a keyed
 * hash of the bytes it came from, so that only those bytes give it back. It is wiped at exit and in a forked child. The lock
 * is held while one thread stretches, so that the others do not do it too.
 *
 * Promise: the same bytes make the same key in every process, other bytes another one. tests/unit/core_key.c. */
#include "core/key.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Both sides must agree on all of these: changed, they make another key. */
#define SALT_LABEL "weft pre-shared key 1"
#define PASSES 3
#define MEMORY ((size_t)32 << 20)

#define STACK_USED 16384 /* by crypto_pwhash(), and more */

#define MARK "weft-key-"
#define VERSION "1 "
#define NAME_BYTES "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
enum { MARK_LEN = sizeof MARK - 1, HEAD_LEN = MARK_LEN + sizeof VERSION - 1, HEX_LEN = 2 * WEFTI_KEY_SIZE };

/* --- what was stretched before ---------------------------------------------------------------------------------------------- */

enum { KEPT = 8, ID_LEN = 16 };

typedef struct kept {
    bool used;
    uint8_t id[ID_LEN];
    uint8_t sealed[WEFTI_KEY_SIZE];
} kept_t;

/* A hash of typed bytes, keyed with a random `secret` of this process. */
typedef struct print {
    uint8_t id[ID_LEN];
    uint8_t seal[WEFTI_KEY_SIZE];
} print_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool keeping; /* the child of a fork will forget: written once */
static uint8_t secret[crypto_generichash_KEYBYTES];
static kept_t kept[KEPT];
static unsigned next_kept;
static uint64_t stretches;

static void forget(void)
{
    sodium_memzero(secret, sizeof secret);
    sodium_memzero(kept, sizeof kept);
}

/* A thread that is not here may have held the lock, and been in the middle of writing. */
static void in_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    forget();
}

static void begin(void)
{
    keeping = !pthread_atfork(NULL, NULL, in_child); /* without, every runtime stretches its key */
}

__attribute__((destructor)) static void at_exit(void)
{
    if (pthread_mutex_trylock(&lock))
        return; /* do not wait for a thread that is still opening a runtime */
    forget();
    pthread_mutex_unlock(&lock);
}

static void print_of(const void *bytes, size_t n, print_t *print)
{
    if (sodium_is_zero(secret, sizeof secret))
        randombytes_buf(secret, sizeof secret);
    crypto_generichash((uint8_t *)print, sizeof *print, bytes, n, secret, sizeof secret);
}

static void mix(uint8_t *to, const uint8_t *a, const uint8_t *b)
{
    for (size_t i = 0; i < WEFTI_KEY_SIZE; i++)
        to[i] = a[i] ^ b[i];
}

static bool recall(const print_t *print, uint8_t *key_out)
{
    for (int i = 0; i < KEPT; i++)
        if (kept[i].used && !sodium_memcmp(kept[i].id, print->id, ID_LEN)) {
            mix(key_out, kept[i].sealed, print->seal);
            return true;
        }
    return false;
}

static void keep(const print_t *print, const uint8_t *key)
{
    kept_t *k = &kept[next_kept++ % KEPT];
    memcpy(k->id, print->id, ID_LEN);
    mix(k->sealed, key, print->seal);
    k->used = true;
}

/* --- stretching ------------------------------------------------------------------------------------------------------------- */

static weft_status_t stretch(const char *whose, const void *bytes, size_t n, uint8_t *key_out)
{
    uint8_t salt[crypto_pwhash_SALTBYTES];
    crypto_generichash(salt, sizeof salt, (const uint8_t *)SALT_LABEL, sizeof SALT_LABEL - 1, NULL, 0);
    stretches++;
    int failed = crypto_pwhash(key_out, WEFTI_KEY_SIZE, bytes, n, salt, PASSES, MEMORY, crypto_pwhash_ALG_ARGON2ID13);
    sodium_stackzero(STACK_USED); /* it leaves a copy of the key there */
    if (failed)
        return wefti_fail(WEFT_ERR_NOMEM,
                          "no memory to stretch %s, which takes %zu MiB for a moment; a key made by \"weft key new FILE\" is not "
                          "stretched",
                          whose, MEMORY >> 20);
    return WEFT_OK;
}

static weft_status_t stretch_once(const char *whose, const void *bytes, size_t n, uint8_t *key_out)
{
    print_t print;
    weft_status_t st = WEFT_OK;
    (void)pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    print_of(bytes, n, &print);
    if (!keeping || !recall(&print, key_out)) {
        st = stretch(whose, bytes, n, key_out);
        if (!st && keeping)
            keep(&print, key_out);
    }
    pthread_mutex_unlock(&lock);
    sodium_memzero(&print, sizeof print);
    return st;
}

uint64_t wefti_key_stretches(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = stretches;
    pthread_mutex_unlock(&lock);
    return n;
}

/* --- what bytes mean -------------------------------------------------------------------------------------------------------- */

typedef struct line {
    const char *at, *end; /* without the end of the line, and blanks before that */
    unsigned number;
} line_t;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next line that is neither empty nor a comment. False: there is none. */
static bool next_line(const char **at, const char *end, line_t *line)
{
    while (*at < end) {
        const char *stop = memchr(*at, '\n', (size_t)(end - *at));
        line->at = *at;
        line->end = stop ? stop : end;
        line->number++;
        *at = stop ? stop + 1 : end;
        while (line->end > line->at && is_blank(line->end[-1]))
            line->end--;
        if (line->end > line->at && *line->at != '#')
            return true;
    }
    return false;
}

bool wefti_keys_are_list(const void *bytes, size_t n)
{
    line_t line = {0};
    const char *at = bytes;
    if (!next_line(&at, at + n, &line))
        return false;
    size_t have = (size_t)(line.end - line.at);
    bool first = line.at == (const char *)bytes; /* then half the mark has always been a typed key */
    return have >= MARK_LEN ? !memcmp(line.at, MARK, MARK_LEN) : !first && !memcmp(line.at, MARK, have);
}

/* One line of a list. False: it is none. */
static bool read_line(const line_t *line, wefti_keys_t *keys)
{
    uint8_t key[WEFTI_KEY_SIZE];
    size_t got = 0, n = (size_t)(line->end - line->at);
    const char *end = NULL, *name = line->at + HEAD_LEN + HEX_LEN;
    if (n < HEAD_LEN + HEX_LEN || memcmp(line->at, MARK VERSION, HEAD_LEN) || (name < line->end && !is_blank(*name)))
        return false;
    while (name < line->end && is_blank(*name))
        name++;
    size_t name_len = (size_t)(line->end - name);
    if (name_len > WEFTI_KEY_NAME_MAX)
        return false;
    for (size_t i = 0; i < name_len; i++)
        if (!name[i] || !strchr(NAME_BYTES, name[i]))
            return false;
    bool good = !sodium_hex2bin(key, sizeof key, line->at + HEAD_LEN, HEX_LEN, NULL, &got, &end) && got == sizeof key &&
                end == line->at + HEAD_LEN + HEX_LEN;
    if (good)
        wefti_keys_add(keys, key, name, name_len);
    sodium_memzero(key, sizeof key);
    return good;
}

static weft_status_t read_list(const char *whose, const char *text, size_t n, wefti_keys_t **out)
{
    line_t line = {0};
    unsigned lines[WEFTI_KEYS_MOST], most = 1;
    for (size_t i = 0; i < n && most < WEFTI_KEYS_MOST; i++)
        most += text[i] == '\n';
    wefti_keys_t *keys = wefti_keys_new(most);
    weft_status_t st = keys ? WEFT_OK : wefti_fail(WEFT_ERR_NOMEM, "no memory for keys");
    for (const char *at = text; !st && next_line(&at, text + n, &line);) {
        if (keys->n == WEFTI_KEYS_MOST) {
            st = wefti_fail(WEFT_ERR_INVALID, "%s has more than %d keys", whose, (int)WEFTI_KEYS_MOST);
        } else if (!read_line(&line, keys)) {
            st = wefti_fail(WEFT_ERR_INVALID,
                            "line %u of %s is not \"" MARK VERSION "\", %d hex digits as \"weft key new FILE\" writes them, and "
                            "perhaps a name (at most %d of A-Z a-z 0-9 . _ -)",
                            line.number, whose, (int)HEX_LEN, (int)WEFTI_KEY_NAME_MAX);
        } else if (!strcmp(keys->at[keys->n - 1].name, WEFTI_ANONYMOUS)) {
            st = wefti_fail(WEFT_ERR_INVALID, "line %u of %s: \"" WEFTI_ANONYMOUS "\" is no name, it stands for who has none",
                            line.number, whose);
        } else {
            lines[keys->n - 1] = line.number;
            for (unsigned i = 0; !st && i + 1 < keys->n; i++)
                if (!memcmp(keys->at[i].print, keys->at[keys->n - 1].print, WEFTI_KEY_PRINT_SIZE))
                    st = wefti_fail(WEFT_ERR_INVALID, "lines %u and %u of %s have the same key", lines[i], line.number, whose);
        }
    }
    if (st) {
        wefti_keys_free(keys);
        return st;
    }
    keys->listed = true;
    *out = keys;
    return WEFT_OK;
}

weft_status_t wefti_keys_make(const char *whose, const void *bytes, size_t n, bool random, wefti_keys_t **out)
{
    uint8_t key[WEFTI_KEY_SIZE];
    weft_status_t st = WEFT_OK;
    if (sodium_init() < 0)
        return wefti_fail(WEFT_ERR_SYSTEM, "libsodium cannot start: there is no randomness");
    if (!random && wefti_keys_are_list(bytes, n))
        return read_list(whose, bytes, n, out);
    if (random)
        memcpy(key, bytes, sizeof key);
    else
        st = stretch_once(whose, bytes, n, key);
    if (st)
        return st;
    wefti_keys_t *keys = wefti_keys_new(1);
    if (keys)
        wefti_keys_add(keys, key, "", 0);
    sodium_memzero(key, sizeof key);
    if (!keys)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a key");
    *out = keys;
    return WEFT_OK;
}

/* --- files ------------------------------------------------------------------------------------------------------------------ */

weft_status_t wefti_keys_read(const char *path, bool listed, wefti_keys_t **out)
{
    unsigned char bytes[WEFTI_KEY_MOST + 1];
    char whose[300];
    struct stat info;
    size_t n = 0;
    weft_status_t st = WEFT_ERR_INVALID;
    snprintf(whose, sizeof whose, "the key file \"%.250s\"", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return wefti_fail(errno == EMFILE || errno == ENFILE ? WEFT_ERR_LIMIT : st, "%s cannot be opened: %s", whose,
                          strerror(errno));
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        wefti_fail(st, "%s is not a regular file", whose);
        goto err_fd;
    }
    if (info.st_mode & S_IRWXO) {
        wefti_fail(st, "%s has mode %03o; others must not have access to it", whose, (unsigned)info.st_mode & 0777);
        goto err_fd;
    }
    while (n < sizeof bytes) {
        ssize_t got = read(fd, bytes + n, sizeof bytes - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            st = wefti_fail(WEFT_ERR_SYSTEM, "%s cannot be read: %s", whose, strerror(errno));
            goto err_bytes;
        }
        if (!got)
            break;
        n += (size_t)got;
    }
    if (n < WEFTI_KEY_LEAST || n > WEFTI_KEY_MOST) {
        wefti_fail(st, "%s has %s%zu bytes, but should have %d to %d", whose, n > WEFTI_KEY_MOST ? "at least " : "", n,
                   (int)WEFTI_KEY_LEAST, (int)WEFTI_KEY_MOST);
        goto err_bytes;
    }
    if (listed && !wefti_keys_are_list(bytes, n))
        wefti_fail(st, "%s had lines of \"" MARK VERSION "\" and has none now", whose);
    else
        st = wefti_keys_make(whose, bytes, n, false, out);

err_bytes:
    sodium_memzero(bytes, n);
err_fd:
    close(fd);
    return st;
}

bool wefti_keys_renew(weft_runtime_t *rt)
{
    const char *path = rt->config.key_file;
    wefti_keys_t *keys;
    bool any = rt->keys_in_file && wefti_changed_look(&rt->keys_seen, path);
    if (!any && !rt->keys_bad)
        return false;
    weft_status_t st = wefti_keys_read(path, rt->keys->listed, &keys);
    bool warns = st && rt->keys_bad && !any && !rt->keys_warned; /* at the second look: somebody may have been writing it */
    rt->keys_warned = warns || (rt->keys_warned && !any);
    rt->keys_bad = st;
    if (st) {
        if (warns && wefti_head(rt) == rt)
            wefti_warn("the key file has changed, and the keys from before are still used: %s", weft_last_error());
        return false;
    }
    wefti_keys_free(rt->keys);
    rt->keys = keys;
    wefti_info("the key file \"%s\" has changed: %u keys are accepted from now on", path, keys->n);
    return true;
}
