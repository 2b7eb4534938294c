/* conn/rules.c - see rules.h. weft/policy.h says how rules are written.
 *
 * A policy is one copy of the text, cut into words, and a table of rules that point into it. A verdict looks at the rules from
 * the first on; rules are few, and a verdict is asked for once for each binding.
 *
 * Promise: text that is not understood to its end is no policy. A verdict is that of the first rule that fits, or of the last
 * line. tests/unit/conn_rules.c, tests/fuzz/policy.c. */
#include "conn/rules.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/units.h"

enum { TEXT_MOST = 1 << 20, RULES_MOST = 10000, WORD_MOST = 255, WORDS = 5 };
enum { ACTION_ALL = 0, ACTIONS = WEFT_MAY_PUBLISH };

typedef struct rule {
    const char *who, *name;
    uint64_t limit;
    uint32_t line;
    uint8_t action; /* ACTION_ALL, or a weft_may_t */
    bool allow;
} rule_t;

struct wefti_policy {
    char *text;
    rule_t *rules;
    size_t n, cap;
    uint32_t last_line;
    bool allow; /* what holds where no rule fits */
};

static const char *const action_names[ACTIONS + 1] = {"all",      "connect",   "call",   "mem-allocate",
                                                      "mem-read", "mem-write", "publish"};

const char *wefti_may_name(weft_may_t action)
{
    return wefti_may_known((int)action) ? action_names[action] : "?";
}

bool wefti_may_known(int action)
{
    return action >= 1 && action <= ACTIONS;
}

bool wefti_may_find(const char *word, weft_may_t *out)
{
    for (int i = 1; i <= ACTIONS; i++)
        if (!strcmp(word, action_names[i])) {
            *out = (weft_may_t)i;
            return true;
        }
    return false;
}

/* --- reading -------------------------------------------------------------------------------------------------------------- */

static weft_status_t no_action(uint32_t line, const char *word)
{
    const char *near = NULL;
    size_t least = 0;
    for (int i = 0; i <= ACTIONS; i++) {
        size_t d = wefti_word_distance(word, action_names[i]);
        if (wefti_word_near(d, action_names[i]) && (!near || d < least)) {
            near = action_names[i];
            least = d;
        }
    }
    if (near)
        return wefti_fail(WEFT_ERR_INVALID, "line %u: there is no action \"%s\"; did you mean \"%s\"?", line, word, near);
    return wefti_fail(WEFT_ERR_INVALID,
                      "line %u: there is no action \"%s\"; there are connect, call, mem-allocate, mem-read, mem-write, publish "
                      "and all",
                      line, word);
}

/* The words of a line, which ends at `end`; each becomes a string. More than WORDS are counted as WORDS. */
static weft_status_t cut(char *at, char *end, uint32_t line, char *words[WORDS], int *n_out)
{
    int n = 0;
    while (at < end) {
        if (*at == ' ' || *at == '\t' || *at == '\r') {
            *at++ = '\0';
            continue;
        }
        if (*at == '#')
            break;
        char *from = at;
        for (; at < end && *at != ' ' && *at != '\t' && *at != '\r'; at++)
            if ((unsigned char)*at < 0x20 || (unsigned char)*at == 0x7f)
                return wefti_fail(WEFT_ERR_INVALID, "line %u: there is a byte 0x%02x in it, which is no text", line,
                                  (unsigned)(unsigned char)*at);
        if (at - from > WORD_MOST)
            return wefti_fail(WEFT_ERR_INVALID, "line %u: \"%.20s...\" has %zu bytes; a word has at most %d", line, from,
                              (size_t)(at - from), (int)WORD_MOST);
        if (n < WORDS)
            words[n] = from;
        n++;
    }
    if (at < end)
        *at = '\0';
    *n_out = n;
    return WEFT_OK;
}

/* Is it what somebody who forgot the name would write for a number of bytes: 4096, 64k, 4GiB, 4GB? */
static bool reads_as_size(const char *word)
{
    size_t digits = strspn(word, "0123456789");
    const char *unit = word + digits;
    if (*unit && strchr("kKmMgGtT", *unit))
        unit++;
    return digits && (!*unit || !strcasecmp(unit, "b") || !strcasecmp(unit, "ib"));
}

static weft_status_t add_rule(wefti_policy_t *p, char *const *words, int n, uint32_t line)
{
    rule_t r = {.allow = !strcmp(words[0], "allow"), .line = line, .limit = UINT64_MAX, .name = "*"};
    weft_may_t action;
    if (!r.allow && strcmp(words[0], "deny") != 0)
        return wefti_fail(WEFT_ERR_INVALID, "line %u: a rule begins with \"allow\", \"deny\" or \"default\", not with \"%s\"",
                          line, words[0]);
    if (n < 3)
        return wefti_fail(WEFT_ERR_INVALID, "line %u: a rule is: %s WHO ACTION [NAME [BYTES]]", line, words[0]);
    r.who = words[1];
    if (wefti_may_find(words[2], &action))
        r.action = (uint8_t)action;
    else if (strcmp(words[2], "all") != 0)
        return no_action(line, words[2]);
    if (n > 3 && (r.action == ACTION_ALL || r.action == WEFT_MAY_CONNECT))
        return wefti_fail(WEFT_ERR_INVALID, "line %u: no name follows \"%s\", but there is \"%s\"", line, words[2], words[3]);
    if (n > 3)
        r.name = words[3];
    if (n == 4 && r.allow && r.action == WEFT_MAY_ALLOCATE && reads_as_size(words[3]))
        return wefti_fail(WEFT_ERR_INVALID,
                          "line %u: \"%s\" stands where the name of a block does, and reads as a number of bytes; did you mean "
                          "\"* %s\"?",
                          line, words[3], words[3]);
    if (n > 4 && (r.action != WEFT_MAY_ALLOCATE || !r.allow))
        return wefti_fail(
            WEFT_ERR_INVALID,
            "line %u: \"%s\" is one word too many: only \"allow WHO mem-allocate NAME\" has a number of bytes behind it", line,
            words[4]);
    if (n > 4 && wefti_parse_size(words[4], &r.limit))
        return wefti_fail(WEFT_ERR_INVALID, "line %u: \"%s\" is no number of bytes, like 4096, 64k or 4G", line, words[4]);
    if (n > WORDS)
        return wefti_fail(WEFT_ERR_INVALID, "line %u: there are words behind \"%s\"", line, words[4]);
    if (p->n == RULES_MOST)
        return wefti_fail(WEFT_ERR_INVALID, "line %u: a policy has at most %d rules", line, (int)RULES_MOST);
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 16;
        rule_t *rules = wefti_realloc(p->rules, cap * sizeof *rules);
        if (!rules)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory for a policy");
        p->rules = rules;
        p->cap = cap;
    }
    p->rules[p->n++] = r;
    return WEFT_OK;
}

static weft_status_t add_default(wefti_policy_t *p, char *const *words, int n, uint32_t line)
{
    p->allow = n == 2 && !strcmp(words[1], "allow");
    if (n != 2 || (!p->allow && strcmp(words[1], "deny") != 0))
        return wefti_fail(WEFT_ERR_INVALID, "line %u: it has to be \"default deny\" or \"default allow\"", line);
    p->last_line = line;
    return WEFT_OK;
}

static weft_status_t read_lines(wefti_policy_t *p, size_t len)
{
    char *at = p->text, *end = p->text + len;
    uint32_t line = 0;
    weft_status_t st = WEFT_OK;
    if (len >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
        at += 3; /* what some editors put before the first word */
    while (at < end && !st) {
        char *stop = memchr(at, '\n', (size_t)(end - at)), *words[WORDS];
        int n = 0;
        if (!stop)
            stop = end;
        else
            *stop = '\0';
        st = cut(at, stop, ++line, words, &n);
        if (!st && n && p->last_line)
            st = wefti_fail(WEFT_ERR_INVALID, "line %u: nothing follows the line that begins with \"default\", which is line %u",
                            line, p->last_line);
        else if (!st && n)
            st = strcmp(words[0], "default") != 0 ? add_rule(p, words, n, line) : add_default(p, words, n, line);
        at = stop + 1;
    }
    if (!st && !p->last_line)
        st = wefti_fail(WEFT_ERR_INVALID,
                        "line %u: the last line has to be \"default deny\" or \"default allow\"; perhaps the end is missing",
                        line ? line : 1);
    return st;
}

weft_status_t wefti_policy_parse(const char *text, size_t len, wefti_policy_t **out)
{
    if (len > TEXT_MOST)
        return wefti_fail(WEFT_ERR_INVALID, "a policy has at most %d bytes, and this one %zu", (int)TEXT_MOST, len);
    wefti_policy_t *p = wefti_calloc(1, sizeof *p);
    if (p)
        p->text = wefti_malloc(len + 1);
    if (!p || !p->text) {
        wefti_policy_free(p);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a policy of %zu bytes", len);
    }
    if (len)
        memcpy(p->text, text, len);
    p->text[len] = '\0';
    weft_status_t st = read_lines(p, len);
    if (st) {
        wefti_policy_free(p);
        return st;
    }
    *out = p;
    return WEFT_OK;
}

void wefti_policy_free(wefti_policy_t *p)
{
    if (!p)
        return;
    wefti_free(p->rules);
    wefti_free(p->text);
    wefti_free(p);
}

/* --- verdicts ------------------------------------------------------------------------------------------------------------- */

static void take(weft_verdict_t *verdict, const rule_t *r)
{
    verdict->allowed = r->allow;
    verdict->line = r->line;
    verdict->limit = r->limit;
}

/* `*` stands for any text. Only the last `*` that was seen has to be gone back to. */
static bool fits(const char *pattern, const char *text)
{
    const char *star = NULL, *from = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            from = text;
        } else if (*pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

static bool is_about(const rule_t *r, const char *who, weft_may_t action)
{
    return (r->action == ACTION_ALL || r->action == action) && fits(r->who, who);
}

/* A block without a name may be allocated by whoever may allocate one with some name, up to the largest of these limits: so it
 * can be filled first, and named when it is whole. */
static void ask_nameless(const wefti_policy_t *p, const char *who, weft_verdict_t *verdict)
{
    rule_t last = {.allow = p->allow, .line = p->last_line, .limit = UINT64_MAX};
    const rule_t *best = NULL;
    bool decided = false; /* by a rule about every name */
    for (size_t i = 0; i < p->n && !decided; i++) {
        const rule_t *r = &p->rules[i];
        if (!is_about(r, who, WEFT_MAY_ALLOCATE))
            continue;
        decided = fits(r->name, "");
        if (decided)
            last = *r;
        if (r->allow && (!best || r->limit > best->limit))
            best = r;
    }
    if (best && (!last.allow || best->limit > last.limit))
        last = *best;
    take(verdict, &last);
}

void wefti_policy_ask(const wefti_policy_t *p, const char *identity, weft_may_t action, const char *name, weft_verdict_t *verdict)
{
    const char *who = wefti_identity_word(identity), *what = name ? name : "";
    if (action == WEFT_MAY_ALLOCATE && !*what) {
        ask_nameless(p, who, verdict);
        return;
    }
    rule_t last = {.allow = p->allow, .line = p->last_line, .limit = UINT64_MAX};
    size_t i = 0;
    while (i < p->n && !(is_about(&p->rules[i], who, action) && fits(p->rules[i].name, what)))
        i++;
    take(verdict, i < p->n ? &p->rules[i] : &last);
}

bool wefti_policy_limits(const wefti_policy_t *p, weft_may_t action)
{
    for (size_t i = 0; i < p->n; i++) {
        const rule_t *r = &p->rules[i];
        if (r->action != ACTION_ALL && r->action != action)
            continue;
        if (!r->allow || r->limit != UINT64_MAX)
            return true;
        if (!strcmp(r->who, "*") && !strcmp(r->name, "*"))
            return false;
    }
    return !p->allow;
}
