/* tools/python.c - which Python runs what the commands start in it.
 *
 * A name is looked for in PATH, a path is taken as it is. What is found is a whole path that still names a virtual environment's own link: that is
 * how an interpreter knows which environment it is of. tests/tools/tools_run_check.py and tools_element_serve.py hold it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

static char *joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

char *tool_find_python(const char *name)
{
    const char *path = getenv("PATH");
    char *copy, *rest, *part, *found = NULL;
    if (strchr(name, '/')) {
        if (access(name, X_OK))
            return NULL;
        if (*name == '/')
            return strdup(name);
        copy = getcwd(NULL, 0);
        found = copy ? joined(copy, name) : NULL;
        free(copy);
        return found;
    }
    copy = rest = strdup(path ? path : "/usr/bin:/bin");
    while (copy && !found && (part = strsep(&rest, ":"))) {
        char *file = joined(part, name);
        if (file && *part == '/' && !access(file, X_OK)) /* a folder of PATH that depends on where we are is not believed */
            found = file;
        else
            free(file);
    }
    free(copy);
    return found;
}
