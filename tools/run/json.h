/* tools/run/json.h - `weft run`: JSON from others, and lines of it to others; json.c has the promises. */
#ifndef WEFT_TOOLS_RUN_JSON_H
#define WEFT_TOOLS_RUN_JSON_H

#include "base/json.h"
#include "lines.h"
#include "session.h"

typedef wefti_json_text_t run_value_t; /* a value where it lies; p NULL: there is none */

/* Is text[0..n) one JSON value, as RFC 8259 has it, with nothing but blanks around? *value_out is it without them. The
 * functions below only take what has passed this one. */
bool run_json(const char *text, size_t n, run_value_t *value_out);
run_value_t run_json_get(run_value_t object, const char *name); /* the last of that name, as Python has it */
/* The members of an object: *at is {0} at first. False: there are no more. */
bool run_json_next(run_value_t object, wefti_json_t *at, run_value_t *name_out, run_value_t *value_out);
bool run_json_item(run_value_t array, wefti_json_t *at, run_value_t *value_out); /* the same for an array */
bool run_json_is(run_value_t v, const char *text); /* a string of exactly that */
char *run_json_string(run_value_t v);              /* yours to free; NULL: no string, or one with a zero in it */
char *run_json_shown(run_value_t v);               /* the same for people: a zero is \0 */
/* {"who": "what", "n": n, ...: a line to an agent or from one, and its end, which sends it. n 0: of no process. */
tool_json_t run_line_begin(run_text_t *line, const char *who, const char *what, uint64_t n);
void run_line_end(run_text_t *line, tool_json_t *j, run_lines_t *to);
/* A text of any bytes as the member `line`, or `base64` if it is not UTF-8; and such a member, into an empty text. */
void run_json_add_bytes(tool_json_t *j, const char *text, size_t n);
bool run_json_bytes(run_value_t object, run_text_t *out);
bool run_json_count(run_value_t v, uint64_t *out); /* whole and not negative */
char *run_json_twice(run_value_t v); /* a name that an object in it has more than once, yours to free; NULL: none */

#endif
