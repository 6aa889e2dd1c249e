/* A Python that starts at once: `python ... -m stoker...` becomes a forked child of a server that has all of it
 * imported; every other command line goes to the real interpreter, `<this file>.real`. `<this file>.socket` names the
 * server's socket. Signals are passed on; the exit status is the child's; whoever kills this process kills the child. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static int line = -1;

static void pass_on(int number) {
  char one = (char)number;
  if (write(line, &one, 1) < 0) _exit(70);
}

static void all(const void *from, size_t size) {
  for (const char *at = from; size > 0;) {
    ssize_t done = write(line, at, size);
    if (done <= 0) _exit(70);
    at += done, size -= (size_t)done;
  }
}

static uint32_t count(char **words) {
  uint32_t n = 0;
  while (words[n]) n++;
  return n;
}

int main(int argc, char **argv) {
  char self[4096], path[4200], folder[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) return 70;
  self[length] = 0;
  int ours = 0;
  for (int i = 1; i + 1 < argc && (argv[i][0] == '-'); i++) {
    if (!strcmp(argv[i], "-X")) i++;
    else if (!strcmp(argv[i], "-m")) { ours = !strncmp(argv[i + 1], "stoker", 6); break; }
    else if (!strcmp(argv[i], "-c")) break;
  }
  if (!ours) {
    snprintf(path, sizeof path, "%s.real", self);
    execv(path, argv);
    return 70;
  }
  snprintf(path, sizeof path, "%s.socket", self);
  FILE *file = fopen(path, "r");
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (!file || fscanf(file, "%107s", address.sun_path) != 1 || !getcwd(folder, sizeof folder)) return 70;
  fclose(file);
  line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (line < 0 || connect(line, (struct sockaddr *)&address, sizeof address)) { perror("quick python"); return 70; }
  uint32_t sizes[2] = {count(argv), count(environ)};
  char control[CMSG_SPACE(3 * sizeof(int))] = {0};
  struct iovec data = {sizes, sizeof sizes};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET, part->cmsg_type = SCM_RIGHTS, part->cmsg_len = CMSG_LEN(3 * sizeof(int));
  int descriptors[3] = {0, 1, 2};
  memcpy(CMSG_DATA(part), descriptors, sizeof descriptors);
  if (sendmsg(line, &message, 0) < 0) return 70;
  all(folder, strlen(folder) + 1);
  for (char **word = argv; *word; word++) all(*word, strlen(*word) + 1);
  for (char **word = environ; *word; word++) all(*word, strlen(*word) + 1);
  int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  for (int i = 0; i < 5; i++) signal(numbers[i], pass_on);
  int32_t status = 70;
  for (size_t got = 0; got < sizeof status;) {
    ssize_t done = read(line, (char *)&status + got, sizeof status - got);
    if (done > 0) got += (size_t)done;
    else if (done == 0) raise(SIGKILL);
  }
  if (status < 0) { signal(-status, SIG_DFL); raise(-status); }
  return status;
}
