/* Records what a process does to the files below one directory: every call that changes a file or
 * a directory, or makes it durable, in the order in which they took effect.
 *
 * It is loaded before libc (LD_PRELOAD) and stands before its calls. CASSQ_RECORD_ROOT names the
 * directory, without links in its path, CASSQ_RECORD_LOG the file that the record is appended to.
 * One call at a time is made and written down, so the record is in the order of the effects. What
 * failed is left out. `record.py` reads the record; the layouts have to agree.
 *
 * Memory that is mapped (the pages of shared words) is changed without a call and is not seen here.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct entry {
    uint32_t kind, path_size, other_size, data_size;
    uint64_t file, offset, length;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_size;
static int log_fd = -1;

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("CASSQ_RECORD_ROOT"), *log = getenv("CASSQ_RECORD_LOG");
    if (given == NULL || log == NULL || strlen(given) >= sizeof root) return;
    strcpy(root, given);
    root_size = strlen(root);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_below(const char *path) {
    return log_fd >= 0 && strncmp(path, root, root_size) == 0 &&
           (path[root_size] == '/' || path[root_size] == 0);
}

/* The path of an open file, if it is a file or directory below the root. */
static int path_of(int fd, char *path, struct stat *about) {
    char name[64];
    if (log_fd < 0 || fstat(fd, about) != 0) return 0;
    if (!S_ISREG(about->st_mode) && !S_ISDIR(about->st_mode)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

/* A path given to a call, made absolute. Its directory is taken as it is written. */
static int path_at(int directory, const char *given, char *path) {
    char base[PATH_MAX];
    if (log_fd < 0 || given == NULL) return 0;
    if (given[0] == '/') {
        if (strlen(given) >= PATH_MAX) return 0;
        strcpy(path, given);
        return is_below(path);
    }
    if (directory == AT_FDCWD) {
        if (getcwd(base, sizeof base) == NULL) return 0;
    } else {
        struct stat about;
        if (!path_of(directory, base, &about)) return 0;
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, given) >= PATH_MAX) return 0;
    return is_below(path);
}

static void append(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t done = syscall(SYS_write, log_fd, at, size);
        if (done < 0) {
            if (errno == EINTR) continue;
            abort(); /* a record with a gap would be believed */
        }
        at += done;
        size -= (size_t)done;
    }
}

static void put(char kind, uint64_t file, uint64_t offset, uint64_t length, const char *path,
                const char *other, const struct iovec *parts, int count, size_t data_size) {
    int before = errno;
    struct entry entry = {(uint32_t)kind, (uint32_t)strlen(path), (uint32_t)strlen(other),
                          (uint32_t)data_size, file, offset, length};
    append(&entry, sizeof entry);
    append(path, entry.path_size);
    append(other, entry.other_size);
    for (int i = 0; i < count && data_size > 0; i++) {
        size_t size = parts[i].iov_len < data_size ? parts[i].iov_len : data_size;
        append(parts[i].iov_base, size);
        data_size -= size;
    }
    errno = before;
}

#define REAL(type, name, ...)                                     \
    static type (*real)(__VA_ARGS__);                             \
    if (real == NULL) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define LOCKED(type, call)             \
    pthread_mutex_lock(&mutex);        \
    type result = (call)

#define UNLOCKED                       \
    pthread_mutex_unlock(&mutex);      \
    return result

/* --- files come into being --------------------------------------------------------------- */

static void opened(int fd, const char *path, int flags, int was_there) {
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return;
    if ((flags & O_CREAT) && !was_there) put('C', about.st_ino, 0, 0, path, "", NULL, 0, 0);
    else if (flags & O_TRUNC) put('T', about.st_ino, 0, 0, path, "", NULL, 0, 0);
}

static int is_there(const char *path) {
    struct stat about;
    int before = errno, found = lstat(path, &about) == 0;
    errno = before;
    return found;
}

#define MODE                                           \
    mode_t mode = 0;                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {               \
        va_list rest;                                  \
        va_start(rest, flags);                         \
        mode = va_arg(rest, mode_t);                   \
        va_end(rest);                                  \
    }

#define OPEN_AT(name)                                                          \
    int name(int directory, const char *given, int flags, ...) {               \
        MODE                                                                   \
        REAL(int, name, int, const char *, int, ...);                          \
        char path[PATH_MAX];                                                   \
        int ours = (flags & (O_CREAT | O_TRUNC)) && path_at(directory, given, path); \
        if (!ours) return real(directory, given, flags, mode);                 \
        pthread_mutex_lock(&mutex);                                            \
        int was_there = is_there(path);                                        \
        int result = real(directory, given, flags, mode);                      \
        opened(result, path, flags, was_there);                                \
        UNLOCKED;                                                              \
    }

#define OPEN(name)                                                             \
    int name(const char *given, int flags, ...) {                              \
        MODE                                                                   \
        REAL(int, name, const char *, int, ...);                               \
        char path[PATH_MAX];                                                   \
        int ours = (flags & (O_CREAT | O_TRUNC)) && path_at(AT_FDCWD, given, path); \
        if (!ours) return real(given, flags, mode);                            \
        pthread_mutex_lock(&mutex);                                            \
        int was_there = is_there(path);                                        \
        int result = real(given, flags, mode);                                 \
        opened(result, path, flags, was_there);                                \
        UNLOCKED;                                                              \
    }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

/* --- bytes --------------------------------------------------------------------------------- */

static void written(int fd, ssize_t size, off_t offset, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    struct stat about;
    if (size <= 0 || !path_of(fd, path, &about)) return;
    put('W', about.st_ino, (uint64_t)offset, 0, path, "", parts, count, (size_t)size);
}

static off_t position(int fd) {
    struct stat about;
    int flags = fcntl(fd, F_GETFL), before = errno;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if ((flags & O_APPEND) && fstat(fd, &about) == 0) at = about.st_size;
    errno = before;
    return at;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    char path[PATH_MAX];
    struct stat about;
    if (!path_of(fd, path, &about)) return real(fd, data, size);
    struct iovec part = {(void *)data, size};
    pthread_mutex_lock(&mutex);
    off_t at = position(fd);
    ssize_t result = real(fd, data, size);
    written(fd, result, at, &part, 1);
    UNLOCKED;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    char path[PATH_MAX];
    struct stat about;
    if (!path_of(fd, path, &about)) return real(fd, parts, count);
    pthread_mutex_lock(&mutex);
    off_t at = position(fd);
    ssize_t result = real(fd, parts, count);
    written(fd, result, at, parts, count);
    UNLOCKED;
}

#define PWRITE(name)                                                           \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {            \
        REAL(ssize_t, name, int, const void *, size_t, off_t);                 \
        struct iovec part = {(void *)data, size};                              \
        LOCKED(ssize_t, real(fd, data, size, at));                             \
        written(fd, result, at, &part, 1);                                     \
        UNLOCKED;                                                              \
    }

#define PWRITEV(name)                                                          \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) {     \
        REAL(ssize_t, name, int, const struct iovec *, int, off_t);            \
        LOCKED(ssize_t, real(fd, parts, count, at));                           \
        written(fd, result, at, parts, count);                                 \
        UNLOCKED;                                                              \
    }

#define PWRITEV2(name)                                                         \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
        REAL(ssize_t, name, int, const struct iovec *, int, off_t, int);       \
        LOCKED(ssize_t, real(fd, parts, count, at, flags));                    \
        written(fd, result, at, parts, count);                                 \
        UNLOCKED;                                                              \
    }

PWRITE(pwrite)
PWRITE(pwrite64)
PWRITEV(pwritev)
PWRITEV(pwritev64)
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

static void sized(int result, char kind, int fd, uint64_t offset, uint64_t length) {
    char path[PATH_MAX];
    struct stat about;
    if (result == 0 && path_of(fd, path, &about))
        put(kind, about.st_ino, offset, length, path, "", NULL, 0, 0);
}

#define TRUNCATE(name)                                 \
    int name(int fd, off_t size) {                     \
        REAL(int, name, int, off_t);                   \
        LOCKED(int, real(fd, size));                   \
        sized(result, 'T', fd, 0, (uint64_t)size);     \
        UNLOCKED;                                      \
    }

TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define ALLOCATE(name)                                                         \
    int name(int fd, off_t at, off_t size) {                                   \
        REAL(int, name, int, off_t, off_t);                                    \
        LOCKED(int, real(fd, at, size));                                       \
        sized(result, 'A', fd, (uint64_t)at, (uint64_t)size);                  \
        UNLOCKED;                                                              \
    }

ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

/* --- what makes durable ----------------------------------------------------------------------- */

static void synced(int result, char kind, int fd) {
    char path[PATH_MAX];
    struct stat about;
    if (result != 0 || !path_of(fd, path, &about)) return;
    put(S_ISDIR(about.st_mode) ? 'Y' : kind, about.st_ino, 0, 0, path, "", NULL, 0, 0);
}

int fsync(int fd) {
    REAL(int, fsync, int);
    LOCKED(int, real(fd));
    synced(result, 'S', fd);
    UNLOCKED;
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    LOCKED(int, real(fd));
    synced(result, 'D', fd);
    UNLOCKED;
}

/* --- names -------------------------------------------------------------------------------------- */

static void named(int result, char kind, int ours, const char *path, const char *other) {
    struct stat about;
    uint64_t file = 0;
    int before = errno;
    if (result != 0 || !ours) return;
    if (lstat(other[0] ? other : path, &about) == 0) file = about.st_ino;
    errno = before;
    put(kind, file, 0, 0, path, other, NULL, 0, 0);
}

#define ONE_NAME(name, kind, parameters, types, arguments, directory)          \
    int name parameters {                                                      \
        REAL(int, name, types);                                                \
        char path[PATH_MAX];                                                   \
        int ours = path_at(directory, given, path);                            \
        LOCKED(int, real arguments);                                           \
        named(result, kind, ours, path, "");                                   \
        UNLOCKED;                                                              \
    }
#define TYPES(...) __VA_ARGS__

ONE_NAME(unlink, 'U', (const char *given), TYPES(const char *), (given), AT_FDCWD)
ONE_NAME(unlinkat, (flags & AT_REMOVEDIR) ? 'X' : 'U', (int at, const char *given, int flags),
         TYPES(int, const char *, int), (at, given, flags), at)
ONE_NAME(rmdir, 'X', (const char *given), TYPES(const char *), (given), AT_FDCWD)
ONE_NAME(mkdir, 'M', (const char *given, mode_t mode), TYPES(const char *, mode_t), (given, mode),
         AT_FDCWD)
ONE_NAME(mkdirat, 'M', (int at, const char *given, mode_t mode), TYPES(int, const char *, mode_t),
         (at, given, mode), at)

#define TWO_NAMES(name, kind, parameters, types, arguments, first, second)     \
    int name parameters {                                                      \
        REAL(int, name, types);                                                \
        char path[PATH_MAX], other[PATH_MAX];                                  \
        int ours = path_at(first, from, path) && path_at(second, to, other);   \
        LOCKED(int, real arguments);                                           \
        named(result, kind, ours, path, other);                                \
        UNLOCKED;                                                              \
    }

TWO_NAMES(link, 'L', (const char *from, const char *to), TYPES(const char *, const char *),
          (from, to), AT_FDCWD, AT_FDCWD)
TWO_NAMES(linkat, 'L', (int at, const char *from, int to_at, const char *to, int flags),
          TYPES(int, const char *, int, const char *, int), (at, from, to_at, to, flags), at, to_at)
TWO_NAMES(rename, 'R', (const char *from, const char *to), TYPES(const char *, const char *),
          (from, to), AT_FDCWD, AT_FDCWD)
TWO_NAMES(renameat, 'R', (int at, const char *from, int to_at, const char *to),
          TYPES(int, const char *, int, const char *), (at, from, to_at, to), at, to_at)
TWO_NAMES(renameat2, 'R', (int at, const char *from, int to_at, const char *to, unsigned int flags),
          TYPES(int, const char *, int, const char *, unsigned int), (at, from, to_at, to, flags),
          at, to_at)
