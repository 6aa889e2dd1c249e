/* Preloaded: record locks fail with the error number in NO_LOCKS, as on a file system that has none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

static int answer(const char *name, int descriptor, int command, void *argument) {
    const char *number = getenv("NO_LOCKS");
    if (number && (command == F_SETLK || command == F_SETLKW || command == F_GETLK)) {
        errno = atoi(number);
        return -1;
    }
    int (*plain)(int, int, void *) = (int (*)(int, int, void *))dlsym(RTLD_NEXT, name);
    return plain(descriptor, command, argument);
}

int fcntl(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return answer("fcntl", descriptor, command, argument);
}

int fcntl64(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return answer("fcntl64", descriptor, command, argument);
}
