/* parkfile.h - the file in which an isolated model parks its KV blocks: the server opens it, since its
 * worker process may open none. */
#ifndef TERN_SERVER_PARKFILE_H
#define TERN_SERVER_PARKFILE_H

/* The file of the model with this id and path in the folder, made if it is not there, for its owner
 * only, and locked as long as a process has it open. -1: there is none, which is logged. */
int parkfile_open(const char *dir, const char *id, const char *path);
#endif
