/* store/store.h - the door of the room, for element. */
#ifndef WEFTI_STORE_H
#define WEFTI_STORE_H

/* Have every runtime that is opened from now on serve and reach memory. Happens when the library is loaded; before whatever
 * uses it. */
void wefti_store_register(void);

#endif
