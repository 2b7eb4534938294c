/* store/store.h - the door of the room, for element. */
#ifndef WEFTI_STORE_H
#define WEFTI_STORE_H

#include <weft/runtime.h>

/* Have every runtime that is opened from now on serve and reach memory. Happens when the library is loaded; before whatever
 * uses it. */
void wefti_store_register(void);

/* Why a runtime has no state of this library: it was opened before the library was loaded. */
weft_status_t wefti_store_no_state(const weft_runtime_t *rt);

#endif
