/* tests/matrix/lib/row_config.c - rows of weft/config.h. */
#include "row.h"

static void saw(const weft_config_var_t *var, void *user)
{
    turn_text((turn_t *)user, var->name);
    turn_text((turn_t *)user, var->value);
}

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

ROW(weft_config_each, ON_NOTHING)
{
    turn_status(t, weft_config_each(saw, t));
}

ROW(weft_config_unknown_each, ON_NOTHING)
{
    turn_status(t, weft_config_unknown_each(saw, t));
}

ROW(weft_log_set_sink, ON_NOTHING)
{
    weft_log_set_sink(sink, NULL);
    weft_log_set_sink(NULL, NULL);
}

ROW(weft_log_set_level, ON_NOTHING)
{
    weft_log_set_level(WEFT_LOG_WARN);
}

ROW(weft_log, ON_NOTHING)
{
    weft_log(WEFT_LOG_DEBUG, "row %d", 1);
}

ROW(weft_version, ON_NOTHING)
{
    turn_text(t, weft_version());
}

ROW(weft_info_each, ON_NOTHING)
{
    turn_status(t, weft_info_each(saw, t));
}
