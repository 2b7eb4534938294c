/* base/config_value.h - one variable of the list in config.h: its name, and its value from text to the snapshot. */
#ifndef WEFTI_CONFIG_VALUE_H
#define WEFTI_CONFIG_VALUE_H

#include "base/config.h"

#define PREFIX "WEFT_"
enum { PREFIX_LEN = sizeof PREFIX - 1, NAME_CAP = 64, WORD_CAP = 32 };

typedef enum kind { TEXT, PATH, CHOICE, SIZE, TIME, NUMBER } kind_t;

typedef struct var {
    const char *field; /* "heartbeat" */
    kind_t kind;
    const char *def, *range, *doc;
    size_t offset;
} var_t;

/* The text of one variable. */
typedef struct given {
    const char *text;
    const char *source; /* "default", "environment", or the file's path */
    unsigned line;      /* in the file; 0 elsewhere */
} given_t;

/* "WEFT_HEARTBEAT" of "heartbeat". */
void wefti_config_env_name(const var_t *var, char name[NAME_CAP]);
/* "FILE:LINE", or the source alone where line is 0. */
void wefti_config_where(const char *source, unsigned line, char *buf, size_t cap);
/* Which word of a CHOICE's range it is, in its right spelling; -1: none. */
int wefti_config_choice(const var_t *var, const char *text, char word[WORD_CAP]);
/* Set the field of the snapshot. WEFT_ERR_INVALID, with a sentence that says what would be right; _NOMEM. */
weft_status_t wefti_config_convert(const var_t *var, const given_t *given, wefti_config_t *config);

#endif
