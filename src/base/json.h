/* base/json.h - reading JSON that came from outside, in place: no tree, no memory, and never past the end.
 *
 *     wefti_json_t j = wefti_json(text, n);
 *     wefti_json_object(&j);
 *     for (wefti_json_text_t key; wefti_json_member(&j, &key);)
 *         if (wefti_json_is(&key, "count"))
 *             count = wefti_json_i64(&j);
 *         else
 *             wefti_json_skip(&j);
 *     if (!wefti_json_end(&j)) ...
 *
 * A reader that once met something else than it was asked for stays `bad`, gives nothing more and ends every loop: check once, at the end. After each
 * member and each item exactly one value is to be read or skipped. Strings are unescaped where they lie, so the text changes; skipping, and what is
 * called raw, leaves it as it is. */
#ifndef WEFTI_JSON_H
#define WEFTI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFTI_JSON_DEPTH = 32 };

typedef struct wefti_json {
    char *at, *end;
    unsigned depth, deepest; /* deepest: may be changed before the first read; reading recurses so deep */
    bool first;              /* no comma before the next member or item */
    bool halves;             /* may be set before the first read: half a surrogate pair is U+FFFD, and not refused */
    bool bad;
} wefti_json_t;

/* Terminated, but may have zeroes inside. Lives as long as the text. */
typedef struct wefti_json_text {
    char *p;
    size_t n;
} wefti_json_text_t;

wefti_json_t wefti_json(char *text, size_t n);
/* Into an object or an array, and then to its members or items, until false: that was the last, or `bad`. */
void wefti_json_object(wefti_json_t *j);
bool wefti_json_member(wefti_json_t *j, wefti_json_text_t *key_out);
bool wefti_json_member_raw(wefti_json_t *j, wefti_json_text_t *key_out); /* the key with its quotes, as it stands there */
void wefti_json_array(wefti_json_t *j);
bool wefti_json_item(wefti_json_t *j);
/* What comes next by its first character: '{' '[' '"' 't' 'f' 'n', '0' for a number; 0 if it is nothing. */
char wefti_json_next(wefti_json_t *j);
/* {"", 0} when bad. */
wefti_json_text_t wefti_json_string(wefti_json_t *j);
/* A whole number, bare or in a string, as protocol buffers write 64 bits. */
int64_t wefti_json_i64(wefti_json_t *j);
bool wefti_json_bool(wefti_json_t *j);
void wefti_json_skip(wefti_json_t *j);
wefti_json_text_t wefti_json_raw(wefti_json_t *j); /* the next value as it stands there, not terminated */
/* All was read, and nothing but blanks follows. */
bool wefti_json_end(wefti_json_t *j);

bool wefti_json_is(const wefti_json_text_t *t, const char *word);

#endif
