/* tools/main.c - the `weft` command: finds the subcommand and leaves the rest to it.
 *
 * Exit status: 0 done, 1 it could not be done, 2 it was not asked for in words we know. What could not be written to standard output was not done.
 * tests/tools/tools_output.py holds us to it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <weft/config.h>

#include "common.h"

typedef struct command {
    const char *name, *full_name, *summary;
    int (*run)(int argc, char **argv);
    void (*help)(FILE *f);
} command_t;

static const command_t commands[] = {
    {"call", "weft call", "call functions of services, and list who offers what", tool_call, tool_call_help},
    {"element", "weft element", "be an element of a program: started by weft run, or by OpenWhisk", tool_element,
     tool_element_help},
    {"info", "weft info", "what this build, this machine and this configuration are", tool_info, tool_info_help},
    {"key", "weft key", "make a key with which processes know each other", tool_key, tool_key_help},
    {"mem", "weft mem", "serve memory, and put, get, list and remove blocks of it", tool_mem, tool_mem_help},
    {"perf", "weft perf", "measure latency, bandwidth and message rate between two processes", tool_perf, tool_perf_help},
    {"run", "weft run", "run a program in elements: a directory of them, on this machine", tool_run, tool_run_help},
    {"serve", "weft serve", "offer a demo service for weft call to use", tool_serve, tool_serve_help},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *f)
{
    fputs("Usage: weft COMMAND [options]\n\n", f);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "  weft help COMMAND    what a command does, with all of its options\n"
          "  weft --version       the version of the library\n",
          f);
}

static const command_t *find_command(const char *name)
{
    const char *names[N_COMMANDS + 1];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!strcmp(commands[i].name, name))
            return &commands[i];
        names[i] = commands[i].name;
    }
    names[N_COMMANDS] = "help";
    tool_no_command(name, names, N_COMMANDS + 1, "weft");
    return NULL;
}

/* One of these that is closed would be the next thing that is opened, and what is meant for people would be written there. What takes its place
 * cannot be read, or written, as a closed one cannot. */
static bool fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            tool_error("/dev/null cannot be opened for a standard descriptor that is closed: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

static int run(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    const command_t *command;
    bool help;
    if (!word) {
        usage(stderr);
        return TOOL_USAGE;
    }
    if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
        printf("weft %s\n", weft_version());
        return TOOL_OK;
    }
    help = !strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h");
    if (help && argc == 2) {
        usage(stdout);
        return TOOL_OK;
    }
    command = find_command(help ? argv[2] : word);
    if (!command)
        return TOOL_USAGE;
    tool_name = command->full_name;
    if (help) {
        command->help(stdout);
        return TOOL_OK;
    }
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    if (!fill_standard_fds())
        return TOOL_FAILED;
    int rc = run(argc, argv);
    if (!rc && (fflush(stdout) || ferror(stdout) || (close(STDOUT_FILENO) && errno != EBADF))) {
        tool_error("stdout cannot be written");
        rc = TOOL_FAILED;
    }
    return rc;
}
