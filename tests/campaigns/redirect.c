/* Preloaded: connections to 127.0.0.1 go to REDIRECT_PORT instead. Where each one wanted to go is written to a file in
 * REDIRECT_FOLDER that is named by the port it comes from. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int connect(int socket, const struct sockaddr *to, socklen_t size) {
    int (*plain)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    const char *port = getenv("REDIRECT_PORT"), *folder = getenv("REDIRECT_FOLDER");
    if (!port || !folder || to->sa_family != AF_INET) return plain(socket, to, size);
    struct sockaddr_in there = *(const struct sockaddr_in *)to, here = {.sin_family = AF_INET};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (there.sin_addr.s_addr != here.sin_addr.s_addr) return plain(socket, to, size);
    socklen_t length = sizeof here;
    if (bind(socket, (struct sockaddr *)&here, length) || getsockname(socket, (struct sockaddr *)&here, &length)) return -1;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder, ntohs(here.sin_port));
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    fprintf(file, "%d", ntohs(there.sin_port));
    fclose(file);
    there.sin_port = htons(atoi(port));
    return plain(socket, (struct sockaddr *)&there, sizeof there);
}
