/* tools/serve/serve.h - `weft serve`: what its files share.
 *
 *   serve.c    the command line, and the service's life      calc.c    its functions
 */
#ifndef WEFT_TOOLS_SERVE_H
#define WEFT_TOOLS_SERVE_H

#include "../session.h"

/* Add the functions of the demo to a service: those that compute run on its threads, if it has some. */
weft_status_t calc_serve(weft_runtime_t *rt, weft_service_t *service, bool threads);

#endif
