// Package sqlite keeps a store in a SQLite file, or in memory. It exports a [Driver] for the URLs
//
//	sqlite:///var/lib/rowkeeper/state.db    an absolute path
//	sqlite:data/state.db                    a path relative to the working directory
//	memory:                                 a store that is gone when it is closed; each one is a store of its own
//
// Characters that mean something in a URL are percent-encoded in the path (%20, %23, %3F). Parameters follow a question mark:
//
//   - synchronous=FULL|NORMAL|OFF. FULL, the default, acknowledges a write when the disk has it. With NORMAL a power loss or a crash of
//     the operating system may undo the newest acknowledged writes, and with OFF it may also damage the file. A crash of
//     the program alone loses nothing with any of them.
//   - cache_size=64MiB: the page cache of the writing connection, at least 1MiB. It is filled as it is needed.
//   - readers=4: how many reads of objects run at once, by default as many as there are processors, and at least 4.
//   - busy_timeout=5s: how long a write waits for another process to finish its own.
//
// The file must be on a local disk, in a directory where files can be created: SQLite's write-ahead log lies beside it in two more
// files, whose names end in -wal and -shm, and belongs to it. Several processes of one machine may have the file open at once.
//
// # How it works
//
// One connection writes and some read. Readers see a snapshot and wait for nobody. BEGIN IMMEDIATE is the commit lock, between
// processes too. Commits append to the write-ahead log, which the writer copies to the file whenever it has grown to 16 MiB; see boundLog
// for what bounds it when readers are always in it. The sweep returns free pages to the file system in small steps.
//
// # Copies
//
// A copy that is put in the place of the file, while a server runs or while none does, is noticed: its device, inode or time of creation differ from
// those recorded in it. Restoring a copy by writing into the existing file (cp onto it) while no server runs leaves these as they were,
// and cannot be noticed: run `rowkeeper fence` then. Doing that while a server runs damages the database.
package sqlite
