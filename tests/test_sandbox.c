/* The sandbox of worker processes. Each test forks a child, which enters the sandbox and tries
 * something; the child's exit code says what happened. Loads models/tern-tales.gguf.
 *
 * TERN_SANDBOX_GPU=cuda runs the GPU test, with $TERN_SANDBOX_MODEL or the shipped model. */
#include "support.h"

#include "tern.h"

#include "base/confine.h"
#include "base/mem.h"

#include "worker/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TALES "models/tern-tales.gguf"

enum { ENTER_FAILED = 250 };

struct child {
    int code, sig;  /* exit code, or the signal that ended it */
    char log[4096]; /* what it wrote to stderr */
};

typedef int probe_fn(void *arg);

/* Runs fn in a child; stderr is collected. opt NULL: without the sandbox. */
static struct child run_child(const struct sandbox_opt *opt, probe_fn *fn, void *arg)
{
    struct child c = { .code = -1 };
    int fd[2], status;
    size_t n = 0;
    ssize_t k;
    pid_t pid;

    assert_int_equal(pipe(fd), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sandbox_info info;
        struct err e;
        dup2(fd[1], 2);
        close(fd[0]);
        if (opt && sandbox_enter(opt, &info, &e) != OK) {
            dprintf(2, "%s\n", e.msg);
            _exit(ENTER_FAILED);
        }
        _exit(fn(arg));
    }
    close(fd[1]);
    while (n + 1 < sizeof c.log && (k = read(fd[0], c.log + n, sizeof c.log - 1 - n)) > 0)
        n += (size_t)k;
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) c.sig = WTERMSIG(status);
    else c.code = WEXITSTATUS(status);
    if (c.code == ENTER_FAILED) fail_msg("%s", c.log);
    return c;
}

static const struct sandbox_opt *with_model(void)
{
    static struct sandbox_opt opt;

    opt = (struct sandbox_opt){ .model = repo(TALES) };
    assert_non_null(opt.model);
    return &opt;
}

/* A probe: 0 if it succeeded, else errno. */
#define PROBE(name, expr)              \
    static int name(void *arg)         \
    {                                  \
        (void)arg;                     \
        errno = 0;                     \
        return (expr) < 0 ? errno : 0; \
    }

static int pair[2]; /* connected sockets that were there before */
static int unbound; /* and one that is not connected */
static char existing[4096];

PROBE(open_for_writing, open(existing, O_WRONLY))
PROBE(open_for_both, open(existing, O_RDWR))
PROBE(open_with_truncation, open(existing, O_RDONLY | O_TRUNC))
PROBE(create_file, open("/tmp/tern-sandbox-new", O_RDONLY | O_CREAT, 0600))
PROBE(create_unnamed_file, open("/tmp", O_TMPFILE | O_RDWR, 0600))
PROBE(open_by_openat2, syscall(SYS_openat2, AT_FDCWD, existing, existing, 24))
PROBE(remove_file, unlink(existing))
PROBE(rename_file, rename(existing, "/tmp/tern-sandbox-new"))
PROBE(make_folder, mkdir("/tmp/tern-sandbox-new", 0700))
PROBE(change_mode, chmod(existing, 0600))
PROBE(truncate_file, truncate(existing, 0))
PROBE(make_tcp_socket, socket(AF_INET, SOCK_STREAM, 0))
PROBE(make_unix_socket, socket(AF_UNIX, SOCK_STREAM, 0))
PROBE(make_socket_pair, socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){ 0 }))
PROBE(connect_socket, connect(unbound, (void *)&(struct sockaddr){ .sa_family = AF_UNIX }, 3))
PROBE(bind_socket, bind(unbound, (void *)&(struct sockaddr){ .sa_family = AF_UNIX }, 2))
PROBE(listen_on_socket, listen(unbound, 1))
PROBE(use_ioctl, ioctl(pair[0], FIONREAD, &(int){ 0 }))
PROBE(signal_parent, kill(getppid(), 0))
PROBE(signal_group, kill(0, 0))
PROBE(queue_signal, (int)syscall(SYS_rt_sigqueueinfo, getppid(), 0, NULL))
PROBE(start_process, (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
PROBE(start_process_by_vfork, (int)syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0))
PROBE(start_by_clone3, (int)syscall(SYS_clone3, NULL, 0))
PROBE(raise_core_limit, setrlimit(RLIMIT_CORE, &(struct rlimit){ 1, 1 }))
PROBE(set_io_uring_up, (int)syscall(SYS_io_uring_setup, 1, NULL))
PROBE(catch_sigsys, sigaction(SIGSYS, &(struct sigaction){ .sa_handler = SIG_IGN }, NULL))
/* The upper half of the argument is not seen by the kernel, but by a filter. */
PROBE(catch_sigsys_by_trick, (int)syscall(SYS_rt_sigaction, SIGSYS | 1ul << 32,
                                          &(struct sigaction){ .sa_handler = SIG_IGN }, NULL, 8))
PROBE(ask_for_dumpable, prctl(PR_SET_DUMPABLE, 1))
PROBE(read_passwords, open("/etc/passwd", O_RDONLY))
PROBE(read_environment_of_parent, open("/proc/1/environ", O_RDONLY))
PROBE(read_other_model, open(existing, O_RDONLY))

static int send_and_receive(void *arg)
{
    char c = 0;
    (void)arg;
    return write(pair[0], "x", 1) == 1 && recv(pair[1], &c, 1, 0) == 1 && c == 'x' ? 0 : 1;
}

static void open_world(void)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    unbound = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(unbound >= 0);
    snprintf(existing, sizeof existing, "%s", temp_file("existing", "text", 4));
}

static void close_world(void) { close(pair[0]), close(pair[1]), close(unbound); }

struct attempt {
    const char *name;
    probe_fn *fn;
    int want; /* errno */
};

static void assert_attempts(const struct sandbox_opt *opt, const struct attempt *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct child c = run_child(opt, a[i].fn, NULL);
        if (c.sig) fail_msg("%s: ended by signal %d\n%s", a[i].name, c.sig, c.log);
        if (c.code != a[i].want)
            fail_msg("%s: %s, expected: %s\n%s", a[i].name, strerror(c.code), strerror(a[i].want),
                     c.log);
    }
}
#define ASSERT_ATTEMPTS(opt, a) assert_attempts(opt, a, sizeof(a) / sizeof *(a))

static void what_a_worker_does_not_need_is_refused(void **state)
{
    static const struct attempt all[] = {
        { "open for writing", open_for_writing, EACCES },
        { "open for both", open_for_both, EACCES },
        { "open with truncation", open_with_truncation, EACCES },
        { "create a file", create_file, EACCES },
        { "create an unnamed file", create_unnamed_file, EACCES },
        { "openat2", open_by_openat2, ENOSYS },
        { "unlink", remove_file, EPERM },
        { "rename", rename_file, EPERM },
        { "mkdir", make_folder, EPERM },
        { "chmod", change_mode, EPERM },
        { "truncate", truncate_file, EPERM },
        { "socket(AF_INET)", make_tcp_socket, EPERM },
        { "socket(AF_UNIX)", make_unix_socket, EPERM },
        { "socketpair", make_socket_pair, EPERM },
        { "connect", connect_socket, EPERM },
        { "bind", bind_socket, EPERM },
        { "listen", listen_on_socket, EPERM },
        { "ioctl", use_ioctl, EPERM },
        { "kill the parent", signal_parent, EPERM },
        { "kill the group", signal_group, EPERM },
        { "rt_sigqueueinfo", queue_signal, EPERM },
        { "fork", start_process, EPERM },
        { "vfork", start_process_by_vfork, EPERM },
        { "clone3", start_by_clone3, ENOSYS },
        { "setrlimit", raise_core_limit, EPERM },
        { "io_uring_setup", set_io_uring_up, EPERM },
        { "sigaction(SIGSYS)", catch_sigsys, EPERM },
        { "sigaction(SIGSYS) by a trick", catch_sigsys_by_trick, EPERM },
        { "PR_SET_DUMPABLE", ask_for_dumpable, EPERM },
    };
    struct sandbox_opt only_seccomp = { .no_landlock = true };

    (void)state;
    open_world();
    ASSERT_ATTEMPTS(with_model(), all);
    ASSERT_ATTEMPTS(&only_seccomp, all);
    assert_int_equal(run_child(with_model(), send_and_receive, NULL).code, 0);
    assert_int_equal(access(existing, W_OK), 0); /* still there */
    close_world();
}

/* Without the sandbox the same attempts succeed: the probes test what they say. */
static void without_the_sandbox_the_same_succeeds(void **state)
{
    static const struct attempt all[] = {
        { "open for writing", open_for_writing, 0 },
        { "socket(AF_UNIX)", make_unix_socket, 0 },
        { "bind", bind_socket, 0 },
        { "ioctl", use_ioctl, 0 },
        { "kill the parent", signal_parent, 0 },
        { "chmod", change_mode, 0 },
        { "sigaction(SIGSYS)", catch_sigsys, 0 },
        { "read /etc/passwd", read_passwords, 0 },
        { "setrlimit", raise_core_limit, 0 },
    };

    (void)state;
    open_world();
    ASSERT_ATTEMPTS(NULL, all);
    close_world();
}

static bool have_landlock(void) { return syscall(SYS_landlock_create_ruleset, NULL, 0, 1) > 0; }

static void *wait_for_end(void *arg)
{
    for (;;) pause();
    return arg;
}

/* As CUDA's driver does it: the file of another thread, and with truncation. */
static int name_thread(void *arg)
{
    pthread_t t;
    char path[64];
    int fd, rc = pthread_create(&t, NULL, wait_for_end, arg);

    if (rc == 0) rc = pthread_setname_np(t, "named");
    if (rc != 0) return rc;
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    return fd < 0 ? errno : write(fd, "main", 4) == 4 ? 0 : errno;
}

/* As CUDA's driver does it. */
static int listen_as_cuda(void *arg)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    (void)arg;
    snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "tern-test-%d", (int)getpid());
    if (fd < 0 || bind(fd, (void *)&to, sizeof to) != 0 || listen(fd, 1) != 0) return errno;
    return accept4(fd, NULL, NULL, 0) < 0 && errno != EAGAIN ? errno : 0;
}

static int bind_in_folder(void *arg)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    (void)arg;
    snprintf(to.sun_path, sizeof to.sun_path, "/tmp/tern-test-%d", (int)getpid());
    if (fd < 0 || bind(fd, (void *)&to, sizeof to) != 0) return errno;
    unlink(to.sun_path);
    return 0;
}

static void ioctl_needs_a_gpu(void **state)
{
    struct sandbox_opt opt = { .model = repo(TALES), .gpu = true };
    static const struct attempt all[] = {
        { "ioctl", use_ioctl, 0 },
        { "create a file", create_file, EACCES },
        { "create an unnamed file", create_unnamed_file, EACCES },
        { "open with truncation", open_with_truncation, EACCES },
        { "openat2", open_by_openat2, ENOSYS },
        { "socket(AF_INET)", make_tcp_socket, EPERM },
        { "abstract socket", listen_as_cuda, 0 },
        { "connect", connect_socket, ENOENT },
        { "fork", start_process, EPERM },
    };
    static const struct attempt confined[] = {
        { "open for writing", open_for_writing, EACCES },
        { "socket in a folder", bind_in_folder, EACCES },
        { "name a thread", name_thread, 0 },
    };

    (void)state;
    open_world();
    ASSERT_ATTEMPTS(&opt, all);
    if (have_landlock()) ASSERT_ATTEMPTS(&opt, confined);
    opt.no_landlock = true;
    ASSERT_ATTEMPTS(&opt, all);
    close_world();
}

/* ---- what ends the process ---- */

static int call_execve(void *arg)
{
    char *argv[] = { "/bin/true", NULL };
    (void)arg;
    return execve("/bin/true", argv, NULL);
}

static int call_ptrace(void *arg) { return (int)ptrace(PTRACE_ATTACH, getppid(), arg, NULL); }
static int call_mount(void *arg) { return mount("none", "/mnt", "tmpfs", 0, arg); }
static int call_unshare(void *arg) { return (void)arg, unshare(CLONE_NEWUSER); }

static void an_intruders_call_ends_the_process_with_a_line_in_the_log(void **state)
{
    static const struct {
        probe_fn *fn;
        const char *name;
    } all[] = {
        { call_execve, "execve" },
        { call_ptrace, "ptrace" },
        { call_mount, "mount" },
        { call_unshare, "unshare" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct child c = run_child(with_model(), all[i].fn, NULL);
        char want[64];
        snprintf(want, sizeof want, "(%s); the worker ends", all[i].name);
        assert_int_equal(c.sig, SIGSYS);
        if (!strstr(c.log, want)) fail_msg("%s: the log is '%s'", want, c.log);
        assert_non_null(sandbox_death(c.sig));
    }
    assert_null(sandbox_death(SIGKILL));
}

/* ---- Landlock ---- */

static int read_allowed(void *arg)
{
    char byte;
    int fd = open(arg, O_RDONLY);
    DIR *d;

    if (fd < 0 || read(fd, &byte, 1) != 1) return errno ? errno : 1;
    if ((fd = open("/proc/self/statm", O_RDONLY)) < 0 || read(fd, &byte, 1) != 1) return 2;
    if ((fd = open("/proc/meminfo", O_RDONLY)) < 0 || read(fd, &byte, 1) != 1) return 3;
    if (!(d = opendir("/"))) return 4;
    return 0;
}

static void only_the_model_and_system_files_can_be_read(void **state)
{
    static const struct attempt all[] = {
        { "read /etc/passwd", read_passwords, EACCES },
        { "read another file", read_other_model, EACCES },
        { "read the environment of another process", read_environment_of_parent, EACCES },
    };

    (void)state;
    if (!have_landlock()) {
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    open_world();
    ASSERT_ATTEMPTS(with_model(), all);
    assert_int_equal(run_child(with_model(), read_allowed, (void *)repo(TALES)).code, 0);
    close_world();
}

static int count_processors(void *arg)
{
    hwloc_topology_t topo;

    (void)arg;
    if (hwloc_topology_init(&topo) != 0 || hwloc_topology_load(topo) != 0) return 0;
    return hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_PU) +
           16 * hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_NUMANODE);
}

static void hwloc_sees_the_same_machine_inside(void **state)
{
    int outside = run_child(NULL, count_processors, NULL).code;

    (void)state;
    assert_true(outside > 0);
    assert_int_equal(run_child(with_model(), count_processors, NULL).code, outside);
}

static int read_first(void *arg)
{
    char byte;
    int fd = open(arg, O_RDONLY);
    return fd < 0 ? errno : read(fd, &byte, 1) == 1 ? 0 : 1;
}

static void the_parts_of_a_model_belong_to_it(void **state)
{
    const char *one = temp_file("m-00001-of-00002.gguf", "x", 1);
    const char *two = temp_file("m-00002-of-00002.gguf", "x", 1);
    const char *other = temp_file("n-00001-of-00002.gguf", "x", 1);
    const char *onnx = temp_file("model.onnx", "x", 1), *beside = temp_file("config.json", "x", 1);
    const char *extra = temp_file("template.jinja", "x", 1);
    const char *more[] = { extra, "/no/such/file" };
    struct sandbox_opt gguf = { .model = one }, file = { .model = onnx };
    struct sandbox_opt both = { .model = one, .read = more, .n_read = 2 };

    (void)state;
    if (!have_landlock()) skip();
    assert_int_equal(run_child(&gguf, read_first, (void *)one).code, 0);
    assert_int_equal(run_child(&gguf, read_first, (void *)two).code, 0);
    assert_int_equal(run_child(&gguf, read_first, (void *)other).code, EACCES);
    assert_int_equal(run_child(&gguf, read_first, (void *)extra).code, EACCES);
    assert_int_equal(run_child(&both, read_first, (void *)extra).code, 0);
    assert_int_equal(run_child(&file, read_first, (void *)beside).code, 0);
}

static const char *make_dir(const char *name)
{
    static char path[8][4096];
    static int n;
    char *p = path[n++ % 8];

    snprintf(p, sizeof path[0], "%s/%s", temp_dir(), name);
    if (mkdir(p, 0700) != 0 && errno != EEXIST) fail_msg("%s: %s", p, strerror(errno));
    return p;
}

/* Links of a folder are followed into the folder itself, the blobs of a cache, and the folder of models
 * that the model lies in; nowhere else. */
static void links_in_a_models_folder_lead_to_its_files(void **state)
{
    char link[4200], blob[4200], *below;
    const char *secret = temp_file("secret", "x", 1), *dir, *all;
    struct sandbox_opt opt = { 0 };

    (void)state;
    if (!have_landlock()) skip();
    all = make_dir("hub");
    make_dir("hub/blobs"), make_dir("hub/snapshots");
    opt.model = dir = make_dir("hub/snapshots/1");
    snprintf(link, sizeof link, "%s/model.safetensors", dir);
    assert_int_equal(symlink(secret, link), 0); /* outside */
    assert_int_equal(run_child(&opt, read_first, link).code, EACCES);
    opt.model = below = confine_path(all, "snapshots/1"); /* a model of a folder of models */
    assert_int_equal(run_child(&opt, read_first, link).code, EACCES);
    mem_free(below);
    opt.model = below =
        confine_path(temp_dir(), "hub/snapshots/1"); /* which has the other file, too */
    assert_int_equal(run_child(&opt, read_first, link).code, 0);
    mem_free(below);
    opt.model = dir;
    assert_int_equal(unlink(link), 0);
    snprintf(blob, sizeof blob, "%s/blobs/1234", all);
    assert_int_equal(rename(temp_file("blob", "x", 1), blob), 0);
    assert_int_equal(symlink("../../blobs/1234", link), 0);
    assert_int_equal(run_child(&opt, read_first, link).code, 0);
    assert_int_equal(run_child(&opt, read_first, (void *)secret).code, EACCES);
}

static void links_of_parts_and_subfolders_are_not_followed_elsewhere(void **state)
{
    const char *secret = temp_file("secret", "x", 1), *dir, *elsewhere;
    char one[4200], two[4200], onnx[4200], inside[4200];
    struct sandbox_opt opt = { .model = one }, folder = { 0 };

    (void)state;
    if (!have_landlock()) skip();
    dir = make_dir("parts"), elsewhere = make_dir("elsewhere");
    snprintf(one, sizeof one, "%s/p-00001-of-00002.gguf", dir);
    snprintf(two, sizeof two, "%s/p-00002-of-00002.gguf", dir);
    assert_int_equal(rename(temp_file("part", "x", 1), one), 0);
    assert_int_equal(symlink(secret, two), 0);
    assert_int_equal(run_child(&opt, read_first, one).code, 0);
    assert_int_equal(run_child(&opt, read_first, two).code, EACCES);
    folder.model = dir;
    snprintf(onnx, sizeof onnx, "%s/onnx", dir);
    snprintf(inside, sizeof inside, "%s/onnx/file", dir);
    assert_int_equal(symlink(elsewhere, onnx), 0);
    snprintf(two, sizeof two, "%s/file", elsewhere);
    assert_int_equal(rename(temp_file("file", "x", 1), two), 0);
    assert_int_equal(run_child(&folder, read_first, inside).code, EACCES);
}

/* ---- what holds besides ---- */

static void the_state_is_said_in_words(void **state)
{
    struct sandbox_opt opt = { .no_landlock = true };
    struct sandbox_info info = { 0 };
    struct err e;
    int status;
    pid_t pid;

    (void)state;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int bad = sandbox_enter(&opt, &info, &e) != OK || !info.seccomp || info.landlock != 0 ||
                  !strstr(info.text, "no landlock") || !strstr(info.text, "any file may be read");
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int read_limits(void *arg)
{
    struct rlimit r;
    (void)arg;
    if (getrlimit(RLIMIT_CORE, &r) != 0 || r.rlim_cur > 1 || r.rlim_max > 1) return 1;
    return 0;
}

static int read_privileges(void *arg)
{
    char text[8192] = { 0 };
    int fd = open("/proc/self/status", O_RDONLY);
    (void)arg;
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) return 1;
    if (!strstr(text, "NoNewPrivs:\t1")) return 2;
    return strstr(text, "Seccomp:\t2") ? 0 : 3;
}

static void there_is_no_core_file_and_no_new_privilege(void **state)
{
    (void)state;
    assert_int_equal(run_child(with_model(), read_limits, NULL).code, 0);
    assert_int_equal(run_child(with_model(), read_privileges, NULL).code, 0);
}

static int be_orphaned(void *arg)
{
    int *fd = arg;
    pid_t me = getpid(), pid = fork();

    if (pid < 0) return 1;
    if (pid == 0) {
        struct sandbox_opt opt = { .parent = me };
        struct sandbox_info info;
        close(fd[0]);
        if (sandbox_enter(&opt, &info, NULL) != OK) _exit(1);
        if (write(fd[1], "r", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(fd[1]);
    return 0; /* the parent ends as soon as the worker is ready */
}

static void a_worker_dies_with_its_parent(void **state)
{
    char byte;
    int fd[2], status;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int rc = be_orphaned(fd);
        if (rc == 0 && read(fd[0], &byte, 1) != 1) rc = 2;
        _exit(rc);
    }
    close(fd[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(read(fd[0], &byte, 1), 0); /* its end of the pipe is closed: it is dead */
    close(fd[0]);
}

static void a_worker_whose_parent_is_gone_does_not_start(void **state)
{
    struct sandbox_opt opt = { .parent = 1 << 29 };
    struct sandbox_info info;
    struct err e;
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) _exit(sandbox_enter(&opt, &info, &e) == E_DENIED ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- threads ---- */

static void *make_socket(void *arg)
{
    int go = *(int *)arg;
    char byte;
    ssize_t n = go >= 0 ? read(go, &byte, 1) : 1;
    if (n != 1) return NULL;
    return socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM ? arg : NULL;
}

static void threads_from_before_and_after_are_confined(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sandbox_opt opt = { .model = repo(TALES) };
        struct sandbox_info info;
        pthread_t before, after;
        void *a = NULL, *b = NULL;
        int fd[2], none = -1;

        if (pipe(fd) != 0 || pthread_create(&before, NULL, make_socket, &fd[0]) != 0) _exit(1);
        if (sandbox_enter(&opt, &info, NULL) != OK) _exit(2);
        if (info.landlock && info.n_outside < 1) _exit(3); /* it is said that one is outside */
        if (pthread_create(&after, NULL, make_socket, &none) != 0) _exit(4);
        if (write(fd[1], "x", 1) != 1) _exit(5);
        pthread_join(before, &a);
        pthread_join(after, &b);
        _exit(a && b ? 0 : 6);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- the engine ---- */

struct generation {
    const char *path, *device;
    const struct sandbox_opt *opt; /* NULL: no sandbox */
    bool open_first;               /* the model is loaded before the sandbox is entered */
    char *text;                    /* [TEXT_MAX] shared with the child */
};
enum { TEXT_MAX = 4096 };

static int open_model(tern_model **m, const struct generation *g)
{
    tern_options o;

    tern_options_init(&o);
    o.context = 256;
    o.threads = g->device ? 0 : 2;
    if (g->device) o.device = g->device;
    return tern_open(m, g->path, &o);
}

static int generate(tern_model *m, char *text)
{
    static const char prompt[] = "Once upon a time";
    tern_request *r = NULL;
    tern_params p;
    tern_event ev;
    size_t n = 0;

    tern_params_init(&p, m);
    p.temp = 0;
    p.max_tokens = 40;
    p.raw = 1;
    if (tern_submit(&r, m, prompt, sizeof prompt - 1, &p) != TERN_OK) return 20;
    do {
        if (tern_next(r, &ev) != TERN_OK) return 21;
        if (n + ev.n >= TEXT_MAX) return 22;
        memcpy(text + n, ev.text, ev.n);
        n += ev.n;
    } while (ev.finish == TERN_FINISH_NONE);
    tern_request_close(r);
    return n > 10 ? 0 : 23;
}

static int generate_in_sandbox(void *arg)
{
    struct generation *g = arg;
    struct sandbox_info info;
    struct err e;
    tern_model *m = NULL;
    int rc;

    if (g->open_first && open_model(&m, g) != TERN_OK) goto failed;
    if (g->opt && sandbox_enter(g->opt, &info, &e) != OK) {
        dprintf(2, "%s\n", e.msg);
        return 30;
    }
    if (g->opt) dprintf(2, "sandbox: %s\n", info.text);
    if (!g->open_first && open_model(&m, g) != TERN_OK) goto failed;
    rc = generate(m, g->text);
    if (rc == 0) tern_close(m);
    else dprintf(2, "%s\n", tern_error());
    return rc;
failed:
    dprintf(2, "%s\n", tern_error());
    return 31;
}

static void assert_generates(struct generation g, char *text)
{
    struct child c;

    g.text = mmap(NULL, TEXT_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(g.text != MAP_FAILED);
    c = run_child(NULL, generate_in_sandbox, &g);
    if (c.sig || c.code) fail_msg("code %d, signal %d: %s", c.code, c.sig, c.log);
    memcpy(text, g.text, TEXT_MAX);
    munmap(g.text, TEXT_MAX);
}

static void a_model_loads_and_answers_inside(void **state)
{
    static char plain[TEXT_MAX], inside[TEXT_MAX], loaded[TEXT_MAX];
    struct generation g = { .path = repo(TALES) };

    (void)state;
    assert_generates(g, plain);
    g.opt = with_model();
    assert_generates(g, inside);
    g.open_first = true;
    assert_generates(g, loaded);
    assert_string_equal(plain, inside);
    assert_string_equal(plain, loaded);
}

static void a_model_on_a_gpu_loads_and_answers_inside(void **state)
{
    static char plain[TEXT_MAX], inside[TEXT_MAX];
    const char *model = getenv("TERN_SANDBOX_MODEL");
    struct generation g = { .path = model ? model : repo(TALES) };
    struct sandbox_opt opt = { .model = g.path, .gpu = true };

    (void)state;
    g.device = getenv("TERN_SANDBOX_GPU");
    if (!g.device) skip();
    g.opt = &opt;
    assert_generates(g, inside);
    g.opt = NULL;
    assert_generates(g, plain);
    assert_string_equal(plain, inside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_worker_does_not_need_is_refused),
        cmocka_unit_test(without_the_sandbox_the_same_succeeds),
        cmocka_unit_test(ioctl_needs_a_gpu),
        cmocka_unit_test(an_intruders_call_ends_the_process_with_a_line_in_the_log),
        cmocka_unit_test(only_the_model_and_system_files_can_be_read),
        cmocka_unit_test(hwloc_sees_the_same_machine_inside),
        cmocka_unit_test(the_parts_of_a_model_belong_to_it),
        cmocka_unit_test(links_in_a_models_folder_lead_to_its_files),
        cmocka_unit_test(links_of_parts_and_subfolders_are_not_followed_elsewhere),
        cmocka_unit_test(the_state_is_said_in_words),
        cmocka_unit_test(there_is_no_core_file_and_no_new_privilege),
        cmocka_unit_test(a_worker_dies_with_its_parent),
        cmocka_unit_test(a_worker_whose_parent_is_gone_does_not_start),
        cmocka_unit_test(threads_from_before_and_after_are_confined),
        cmocka_unit_test(a_model_loads_and_answers_inside),
        cmocka_unit_test(a_model_on_a_gpu_loads_and_answers_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
