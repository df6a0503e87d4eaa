/* Fuzz target: an arbitrary folder of models. Each line of the input makes a file, a folder, a link
 * or a FIFO, removes a name, adds a path to the list of models, or rescans. Whatever the folder
 * contains, every model that is listed and can be loaded is inside it.
 *
 *     f NAME   d NAME   p NAME   l NAME TARGET   r NAME   i PATH   s   o PATH
 *
 * "o" opens a path that is confined to the folder: it must be inside.
 *
 * What is made stays inside a temporary folder; a link may point anywhere. */
#include "base/buf.h"
#include "base/confine.h"
#include "base/log.h"
#include "pool/registry_impl.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ITEMS_MAX = 4, OPS_MAX = 200 };

static char top[200], root[220]; /* root is inside top, beside a file that no model may be */

static void make_top(void)
{
    const char *tmp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char path[260];

    snprintf(top, sizeof top, "%s/tern-fuzz-folder-%ld", tmp, (long)getpid());
    snprintf(root, sizeof root, "%s/models", top);
    mkdir(top, 0777);
    snprintf(path, sizeof path, "%s/secret.gguf", top);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    log_set_level(LOG_ERROR);
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);

    for (struct dirent *x; d && (x = readdir(d));) {
        char path[PATH_MAX];

        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, x->d_name) >= (int)sizeof path) continue;
        if (unlink(path) != 0) remove_folder(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

static void remove_top(void) { remove_folder(top); }

/* "root/name"; false: the name would leave the folder, through "..", or through a link. */
static bool place(char out[PATH_MAX], struct str name)
{
    char folder[PATH_MAX], real[PATH_MAX], *slash;

    if (name.n == 0 || name.n > 300 || name.p[0] == '/' || memchr(name.p, 0, name.n)) return false;
    snprintf(out, PATH_MAX, "%s/%.*s", root, STR_ARG(name));
    if (strstr(out, "..")) return false;
    memcpy(folder, out, PATH_MAX);
    if ((slash = strrchr(folder, '/'))) *slash = 0;
    return realpath(folder, real) && place_is_inside(root, real);
}

static void make_link(struct str rest)
{
    ptrdiff_t space = str_find(rest, STR(" "));
    char path[PATH_MAX], target[PATH_MAX];
    struct str to = space < 0 ? STR("") : str_skip(rest, (size_t)space + 1);

    if (space < 0 || to.n >= PATH_MAX || memchr(to.p, 0, to.n)) return;
    snprintf(target, sizeof target, "%.*s", STR_ARG(to));
    if (place(path, str_take(rest, (size_t)space)) && symlink(target, path) != 0) return;
}

static void make_name(char op, struct str name)
{
    char path[PATH_MAX];
    int fd;

    if (op == 'l') {
        make_link(name);
        return;
    }
    if (!place(path, name)) return;
    if (op == 'd') mkdir(path, 0777);
    if (op == 'p') mkfifo(path, 0666);
    if (op == 'r' && unlink(path) != 0) remove_folder(path);
    if (op == 'f' && (fd = open(path, O_CREAT | O_WRONLY | O_EXCL | O_NOFOLLOW, 0666)) >= 0) {
        if (write(fd, "GGUF", 4) != 4) abort();
        close(fd);
    }
}

/* The kernel says where the descriptor is. */
static void open_confined(struct str name)
{
    char path[PATH_MAX], link[40], real[PATH_MAX];
    ssize_t n;
    int fd;

    if (name.n > 1000 || memchr(name.p, 0, name.n)) return;
    snprintf(path, sizeof path, "%s/././%.*s", root, STR_ARG(name));
    if ((fd = confine_open(path, O_RDONLY)) < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, real, sizeof real - 1);
    close(fd);
    if (n < 0) abort();
    real[n] = 0;
    if (!place_is_inside(root, real)) abort();
}

static void check_registry(const struct registry *r)
{
    for (int i = 0; i < registry_n(r); i++) {
        const struct registry_model *m = registry_at(r, i);
        char real[PATH_MAX];

        if (!m->id[0] || !place_is_inside(root, m->real)) abort();
        if (!atomic_load(&m->gone) && registry_find(r, str_c(m->id)) != i) abort();
        if (registry_verify(r, i, NULL) != OK) continue;
        if (!realpath(m->path, real) || !place_is_inside(root, real)) abort();
        if (strlen(real) > strlen(m->path) + PATH_MAX) abort();
    }
}

/* The list of models is what stands before the first rescan. */
static struct registry *open_registry(struct registry_item *items, int n)
{
    struct registry *r = NULL;
    struct err e = { 0 };
    int rc =
        registry_open(&r, &(struct registry_opt){ .items = items, .n = n, .models_dir = root }, &e);

    if (rc != OK && (e.code != rc || !e.msg[0])) abort();
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str text = str_of((const char *)data, n);
    struct registry_item items[ITEMS_MAX];
    char paths[ITEMS_MAX][310];
    struct registry *r = NULL;
    int n_items = 0;

    if (!top[0]) make_top(), atexit(remove_top);
    mkdir(root, 0777);
    for (int i = 0; i < OPS_MAX && text.n; i++) {
        ptrdiff_t end = str_find(text, STR("\n"));
        struct str line = end < 0 ? text : str_take(text, (size_t)end), rest = str_skip(line, 2);

        text = str_skip(text, line.n + 1);
        if (line.n == 0) continue;
        if (line.p[0] == 'i' && n_items < ITEMS_MAX && rest.n && rest.n < 300) {
            snprintf(paths[n_items], sizeof paths[0], "%.*s", STR_ARG(rest));
            items[n_items] =
                (struct registry_item){ .path = paths[n_items], .origin = REGISTRY_CONFIG };
            n_items += paths[n_items][0] != 0;
        } else if (line.p[0] == 's') {
            if (r) registry_rescan(r, NULL, NULL);
            else r = open_registry(items, n_items);
            if (r) check_registry(r);
        } else if (line.p[0] == 'o') {
            open_confined(rest);
        } else {
            make_name(line.p[0], rest);
        }
    }
    if (r) registry_rescan(r, NULL, NULL);
    else r = open_registry(items, n_items);
    if (r) check_registry(r);
    registry_close(r);
    remove_folder(root);
    return 0;
}
