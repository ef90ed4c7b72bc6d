/* Numbers the file operations of a process below given folders, and lets the n-th one kill the process, stop half way or
   fail. Loaded by LD_PRELOAD, so that operations of Rust and C++ libraries are seen too; file_faults.py arms it.

   Also shifts the wall clock, and logs every operation; at each fsync it keeps what has become durable. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum mode { COUNT, KILL_BEFORE, HALF_THEN_KILL, FAIL_ONCE, FAIL_FROM };
enum verdict { GO, HALF, FAIL };
enum { MOST_ROOTS = 8 };

static char roots[MOST_ROOTS][PATH_MAX];
static int num_roots, log_file = -1, kept_file = -1, mode, error_number;
static long count, target;
static __thread long own; /* number of this thread's last operation */
static pid_t armed; /* forked loader workers inherit all this, and are let alone */
static double clock_shift, clock_step;
static long clock_calls;

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* Counts operations below `folders` (separated by line breaks) from now on. `log` and `kept` are descriptors or -1. */
void file_faults_arm(const char *folders, int log, int kept, int what, long nth, int error) {
    num_roots = 0;
    while (*folders && num_roots < MOST_ROOTS) {
        size_t length = strcspn(folders, "\n");
        snprintf(roots[num_roots++], PATH_MAX, "%.*s", (int)length, folders);
        folders += length + (folders[length] == '\n');
    }
    log_file = log, kept_file = kept, mode = what, target = nth, error_number = error, count = 0;
    armed = getpid();
}

long file_faults_count(void) { return count; }

/* Shifts the wall clock by `shift` seconds, and by `step` more at each reading. */
void file_faults_clock(double shift, double step) { clock_shift = shift, clock_step = step, clock_calls = 0; }

static void absolute(int dir, const char *path, char *out) {
    char base[PATH_MAX] = "", link[64];
    out[0] = 0;
    if (!path) return;
    if (path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); return; }
    snprintf(link, sizeof link, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return;
    base[length] = 0;
    if (*path) snprintf(out, PATH_MAX, "%.*s/%.*s", PATH_MAX / 2, base, PATH_MAX / 2 - 2, path);
    else snprintf(out, PATH_MAX, "%s", base);
}

static int watched(const char *path) {
    if (armed == 0 || armed != getpid()) return 0;
    for (int i = 0; i < num_roots; i++) {
        size_t length = strlen(roots[i]);
        if (!strncmp(path, roots[i], length) && (path[length] == '/' || !path[length])) return 1;
    }
    return 0;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Counts an operation. Returns what it does; before a kill this does not return. `grows`: it takes space on the disk. */
static enum verdict begin(int grows) {
    long number = own = __sync_add_and_fetch(&count, 1);
    if (mode == FAIL_FROM && number >= target && grows) { errno = error_number; return FAIL; }
    if (number != target) return GO;
    if (mode == KILL_BEFORE) die();
    if (mode == HALF_THEN_KILL) return HALF;
    if (mode == FAIL_ONCE) { errno = error_number; return FAIL; }
    return GO;
}

static void line(const char *text) {
    if (log_file >= 0 && syscall(SYS_write, log_file, text, strlen(text)) < 0) die();
}

/* Logs an operation that has succeeded: number, name, inode, place of the kept bytes, their length, path, other path. */
static void note_kept(const char *name, const char *path, const char *other, off_t place, off_t length) {
    char text[3 * PATH_MAX];
    struct stat found = {0};
    int saved = errno;
    if (log_file < 0) return;
    if (stat(*other ? other : path, &found)) found.st_ino = 0;
    snprintf(text, sizeof text, "%ld\t%s\t%lu\t%ld\t%ld\t%s\t%s\n", own, name, (unsigned long)found.st_ino,
             (long)place, (long)length, path, other);
    line(text);
    errno = saved;
}

static void note(const char *name, const char *path, const char *other) { note_kept(name, path, other, -1, 0); }

/* Keeps the bytes that a flush has made durable. */
static void keep(const char *name, int fd, const char *path) {
    char buffer[1 << 16];
    struct stat found;
    if (kept_file < 0 || fstat(fd, &found) || !S_ISREG(found.st_mode)) { note(name, path, ""); return; }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int copy = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    off_t place = lseek(kept_file, 0, SEEK_END), length = 0;
    ssize_t got;
    while ((got = read(copy, buffer, sizeof buffer)) > 0 && syscall(SYS_write, kept_file, buffer, got) == got)
        length += got;
    close(copy);
    note_kept(name, path, "", place, length);
}

static int changes(int flags) { return flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR); }

#define OPEN(name, dir, path, flags, call)                                        \
    REAL(name);                                                                   \
    mode_t permissions = 0;                                                       \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                        \
        va_list rest;                                                             \
        va_start(rest, flags), permissions = va_arg(rest, mode_t), va_end(rest);  \
    }                                                                             \
    char full[PATH_MAX] = "";                                                     \
    if (armed && changes(flags)) absolute(dir, path, full);                       \
    int counted = *full && watched(full);                                         \
    enum verdict verdict = counted ? begin((flags & O_CREAT) != 0) : GO;          \
    if (verdict == FAIL) return -1;                                               \
    int fd = call;                                                                \
    if (verdict == HALF) die();                                                   \
    if (counted && fd >= 0) note("open", full, "");                               \
    return fd

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, path, flags, real(path, flags, permissions)); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, path, flags, real(path, flags, permissions)); }
int openat(int dir, const char *path, int flags, ...) { OPEN(openat, dir, path, flags, real(dir, path, flags, permissions)); }
int openat64(int dir, const char *path, int flags, ...) { OPEN(openat64, dir, path, flags, real(dir, path, flags, permissions)); }
int creat(const char *path, mode_t permissions) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, permissions); }

#define STREAM(name)                                                              \
    REAL(name);                                                                   \
    char full[PATH_MAX] = "";                                                     \
    if (armed && strpbrk(how, "wa+")) absolute(AT_FDCWD, path, full);             \
    int counted = *full && watched(full);                                         \
    enum verdict verdict = counted ? begin(1) : GO;                               \
    if (verdict == FAIL) return NULL;                                             \
    FILE *stream = real(path, how);                                               \
    if (verdict == HALF) die();                                                   \
    if (counted && stream) note("open", full, "");                                \
    return stream

FILE *fopen(const char *path, const char *how) { STREAM(fopen); }
FILE *fopen64(const char *path, const char *how) { STREAM(fopen64); }

/* Operations on descriptors. `half` writes a part of the bytes before the process dies. */
#define ON_FILE(name, fd, type, grows, whole, half)                               \
    REAL(name);                                                                   \
    char full[PATH_MAX] = "";                                                     \
    if (armed) absolute(fd, "", full);                                            \
    if (!*full || !watched(full)) return whole;                                   \
    enum verdict verdict = begin(grows);                                          \
    if (verdict == FAIL) return (type)-1;                                         \
    if (verdict == HALF) { if (half) {} die(); }                                  \
    type result = whole;                                                          \
    if (result != (type)-1) note(#name, full, "");                                \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    ON_FILE(write, fd, ssize_t, 1, real(fd, data, size), real(fd, data, size / 2));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    ON_FILE(pwrite, fd, ssize_t, 1, real(fd, data, size, at), real(fd, data, size / 2, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ON_FILE(pwrite64, fd, ssize_t, 1, real(fd, data, size, at), real(fd, data, size / 2, at));
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
    ON_FILE(writev, fd, ssize_t, 1, real(fd, parts, number), real(fd, parts, (number + 1) / 2));
}
ssize_t sendfile(int fd, int from, off_t *at, size_t size) {
    ON_FILE(sendfile, fd, ssize_t, 1, real(fd, from, at, size), real(fd, from, at, size / 2));
}
ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) {
    ON_FILE(sendfile64, fd, ssize_t, 1, real(fd, from, at, size), real(fd, from, at, size / 2));
}
ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags) {
    ON_FILE(copy_file_range, fd, ssize_t, 1, real(from, at, fd, to, size, flags), real(from, at, fd, to, size / 2, flags));
}
int ftruncate(int fd, off_t size) { ON_FILE(ftruncate, fd, int, 1, real(fd, size), real(fd, size)); }
int ftruncate64(int fd, off64_t size) { ON_FILE(ftruncate64, fd, int, 1, real(fd, size), real(fd, size)); }
void *mmap(void *address, size_t size, int access, int flags, int fd, off_t at) {
    int writes = fd >= 0 && (flags & MAP_SHARED) && (access & PROT_WRITE);
    if (!armed || !writes) return (void *)syscall(SYS_mmap, address, size, access, flags, fd, at);
    ON_FILE(mmap, fd, void *, 1, real(address, size, access, flags, fd, at), 0);
}

#define FLUSH(name)                                                               \
    REAL(name);                                                                   \
    char full[PATH_MAX] = "";                                                     \
    if (armed) absolute(fd, "", full);                                            \
    if (!*full || !watched(full)) return real(fd);                                \
    enum verdict verdict = begin(0);                                              \
    if (verdict == FAIL) return -1;                                               \
    if (verdict == HALF) die();                                                   \
    int result = real(fd);                                                        \
    if (!result) keep("fsync", fd, full);                                         \
    return result

int fsync(int fd) { FLUSH(fsync); }
int fdatasync(int fd) { FLUSH(fdatasync); }

/* Operations on names: one, or two for renames and links. */
#define ON_NAME(name, label, dir, path, dir2, path2, grows, call)                 \
    REAL(name);                                                                   \
    char full[PATH_MAX] = "", other[PATH_MAX] = "";                               \
    if (armed) absolute(dir, path, full), absolute(dir2, path2, other);           \
    if (!armed || !(watched(full) || watched(other))) return call;                \
    enum verdict verdict = begin(grows);                                          \
    if (verdict == FAIL) return -1;                                               \
    int result = call;                                                            \
    if (verdict == HALF) die();                                                   \
    if (!result) note(label, full, other);                                        \
    return result

#define HERE AT_FDCWD
int rename(const char *from, const char *to) { ON_NAME(rename, "rename", HERE, from, HERE, to, 0, real(from, to)); }
int renameat(int d, const char *from, int d2, const char *to) { ON_NAME(renameat, "rename", d, from, d2, to, 0, real(d, from, d2, to)); }
int renameat2(int d, const char *from, int d2, const char *to, unsigned f) { ON_NAME(renameat2, "rename", d, from, d2, to, 0, real(d, from, d2, to, f)); }
int link(const char *from, const char *to) { ON_NAME(link, "link", HERE, from, HERE, to, 1, real(from, to)); }
int linkat(int d, const char *from, int d2, const char *to, int f) { ON_NAME(linkat, "link", d, from, d2, to, 1, real(d, from, d2, to, f)); }
int unlink(const char *path) { ON_NAME(unlink, "unlink", HERE, path, HERE, NULL, 0, real(path)); }
int unlinkat(int d, const char *path, int f) { ON_NAME(unlinkat, f ? "rmdir" : "unlink", d, path, d, NULL, 0, real(d, path, f)); }
int rmdir(const char *path) { ON_NAME(rmdir, "rmdir", HERE, path, HERE, NULL, 0, real(path)); }
int mkdir(const char *path, mode_t m) { ON_NAME(mkdir, "mkdir", HERE, path, HERE, NULL, 1, real(path, m)); }
int mkdirat(int d, const char *path, mode_t m) { ON_NAME(mkdirat, "mkdir", d, path, d, NULL, 1, real(d, path, m)); }
int symlink(const char *to, const char *path) { ON_NAME(symlink, "symlink", HERE, path, HERE, NULL, 1, real(to, path)); }

static double shift(void) { return clock_shift + clock_step * (double)__sync_fetch_and_add(&clock_calls, 1); }

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(which, now);
    if (!result && (clock_shift || clock_step) && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)shift();
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
    (void)zone;
    return 0;
}
