/* msg/msg.h - tag messages: the door. The API itself is weft/msg.h. */
#ifndef WEFTI_MSG_H
#define WEFTI_MSG_H

#include "core/core.h"

/* Attach the room to a runtime, after conn. For src/open.c. */
weft_status_t wefti_msg_attach(weft_runtime_t *rt);

#endif
