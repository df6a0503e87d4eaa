/* confine.h - paths that cannot lead out of a folder.
 *
 * A confined path is ROOT/././REST. For the kernel that is ROOT/REST; the two dots are a mark that
 * confine_open understands: neither "..", nor a symbolic link on the way, nor a file that is
 * replaced meanwhile can lead out of ROOT. Links to places inside are followed, also absolute ones.
 *
 * The mark is a part of the text, because a model has many readers (weights, tokenizer, templates,
 * external data), in this process and in workers, which make paths of further files from the path
 * of the model. Whatever they join to a confined path is confined as well, and none of them can
 * forget it. base/file opens all paths in this way. Functions without state: any thread. */
#ifndef TERN_BASE_CONFINE_H
#define TERN_BASE_CONFINE_H

#include <stdbool.h>

/* "ROOT/././rest", freed with mem_free; NULL: no memory. rest "": the folder itself. A confined
 * root stays what it is. */
char *confine_path(const char *root, const char *rest);
bool confine_is(const char *path); /* does it have the mark? */
/* Removes the marks from a text that is shown to people: a path, or an error message. */
void confine_clean(char *text);

/* Like open(2) with O_CLOEXEC, for reading: a descriptor, or -1 and errno; EXDEV: the path leads out
 * of its folder. Of a confined path, what is neither a file nor a folder is not opened: its
 * descriptor is one of O_PATH, which can only be looked at. A path without the mark is opened as it
 * is. */
int confine_open(const char *path, int flags);

/* The part of an absolute path below the folder root, borrowed from path, however root is spelled
 * in it; "": root itself; NULL: the path does not go through root. Links behind root are not looked
 * at. */
const char *confine_below(const char *root, const char *path);
#endif
