// Package sqlite keeps a store in a SQLite file, or in memory. It is a contract.Backend, made with
// package sqlkit, on the tables that package migrations makes. It exports a [Driver] for the URLs
//
//	sqlite:///var/lib/rowkeeper/state.db    an absolute path
//	sqlite:data/state.db                    a path relative to the working directory
//	memory:                                 a store that is gone when it is closed; each one is a store of its own
//
// Characters that mean something in a URL are percent-encoded in the path (%20, %23, %3F).
// Parameters follow a question mark:
//
//   - synchronous=FULL|NORMAL|OFF. FULL, the default, acknowledges a write when the disk has it.
//     With NORMAL a power loss or a crash of the operating system may undo the newest acknowledged
//     writes, and with OFF it may also damage the file. A crash of the program alone loses nothing
//     with any of them. With NORMAL and OFF the first start after each boot of the machine, or on
//     another machine, begins a new history, so that no revision is given twice: the store records
//     the kernel's boot id, with synchronous=FULL, before its first commit. That is so after a
//     shutdown in order, too. On systems other than Linux and macOS no boot id is known: run
//     `rowkeeper fence` after a power loss there.
//   - cache_size=64MiB: the page cache of the writing connection, at least 1MiB. It is filled as it
//     is needed.
//   - readers=4: how many reads of objects run at once, by default as many as there are processors,
//     and at least 4. Lists leave two of them for reads of single objects, if there are more than
//     two.
//   - busy_timeout=5s: how long a write waits for another process to finish its own.
//
// The file must be on a local disk, in a directory where files can be created: SQLite's write-ahead
// log lies beside it in two more files, whose names end in -wal and -shm, and belongs to it.
// Several processes of one machine may have the file open at once, all by the same name: a hard
// link, or a file that is mounted without its directory, has a log and locks of its own, and two
// such logs damage the file. So a file with several names is refused when it is opened. Only Linux
// tells of mounts.
//
// # Several stores
//
// Each store is a file of its own. That of the URL is the default store. The others lie in a
// directory beside it, whose name is that of the file with ".stores" after it: the store "team" of
// state.db is state.db.stores/team.db. Copy or move the directory together with the file of the
// URL; a copy of several stores is not one moment.
//
// # How it works
//
// One connection writes and some read. Readers see a snapshot and wait for nobody. BEGIN IMMEDIATE
// is the commit lock, between processes too. Commits append to the write-ahead log, which is
// copied to the file between two commits whenever it has grown to 8 MiB; see copyLog for what
// bounds it when readers are always in it. The sweep returns free pages to the file system in
// small steps.
//
// # A full disk
//
// Compaction has to write before it can free anything. So the last 32 MiB of the file system, or
// the last eighth of one below 256 MiB, are not given to values: such writes are refused as on a
// full disk, while deletions and compaction go on. When compaction has made room inside the file,
// writes are accepted again by themselves. If other files take this reserve, somebody has to make
// room. On systems other than Linux there is no reserve.
//
// # A log that is gone
//
// The newest commits are in the write-ahead log alone. If somebody removes it (a cleaner, a script
// that restores), the file is whole and old, and SQLite reads it without a word. So the file has a
// mark, SQLite's user_version in its first page: "closed" if all commits are in the file, "open" if
// a log belongs to it. The mark is written by transactions, and so it is in the log, too.
//
//   - Before its first commit a process commits "opening" and copies the log to the file. Then its
//     commits may say "open". Every commit reads the mark under the commit lock, and who finds
//     anything but "open" there does the same. So the file is marked before the first commit, also
//     where several processes write. One thing comes before that: a long read of somebody else can
//     keep the log from being copied, and must not stop writes. They go on, and each tries again.
//   - A clean close copies the log, commits "closed", and closes. If it is the last one, SQLite
//     copies that to the file and removes the log. If not, the next commit of the others finds
//     "closed", and marks the file again. A process that has committed nothing leaves the log of
//     others as it is.
//   - A log that is emptied by force gets a commit of the mark at once. So beside a marked file
//     there is always a log that is not empty.
//
// A file that is marked, with an empty log or none, has therefore lost its log. Mark and length are
// read in one snapshot. A kill is no loss: the log stays, and the next process recovers it. Then:
//
//   - A process that opens the file to serve it fences, since what was in the log may have been
//     seen.
//   - A backup refuses: what is left may be nothing at all.
//   - A process that has the file open compares the log's inode after each operation. It still has
//     the log open, which has no name any more. It commits "closed" there and closes. If nobody
//     else has the file open, SQLite copies the log to the file, and nothing is lost; SQLite tells
//     that by the exclusive lock on the file, which it shares with all others, whatever their log.
//     If another log has come to the name, and is not empty, somebody goes on without the lost one,
//     and the file is left to them. A process that could save nothing answers nothing until it is
//     started again.
//
// Two things look like a loss and are none: a process that is killed between the emptying of a log
// and the commit that follows, and a program of somebody else that copies and removes the log after
// a kill, or empties it, as sqlite3 does. Nothing tells the difference, and the fence harms nobody.
// The mark of a file that is another one than recorded says nothing, since a copy may have been
// made of an open file; it is fenced in any case. The newest commits are lost unnoticed if a log is
// removed while the machine is down that has crashed within a clean close.
//
// # Copies
//
// A copy beside a write-ahead log is refused, since the log may belong to the file that was there
// before: remove the log.
//
// A copy that is put in the place of the file is noticed, while a server runs or when one is
// started: the store records the file's inode and time of creation, its name, and the inode and
// time of creation of its directory. That also holds for a copy that was served and fenced
// elsewhere before, and for a file that was only renamed. Another mount point, a symbolic link, a
// restart of the machine, or a volume that is attached to another machine change none of these.
//
// These cannot be noticed while no server runs, so run `rowkeeper fence` after them:
//
//   - a copy that is written into the existing file (cp onto it, rsync --inplace). Doing that while
//     a server runs damages the database.
//   - a volume that is set back to a snapshot, or replaced by a clone of its blocks
//   - a copy that was served and fenced elsewhere, and is moved together with its directory
//   - a copy that was served and fenced under this very name in this very directory
//   - a file system without times of creation (NFS before 4.1), where a copy has got the same inode
//   - a system other than Linux: times of creation are not read there, and on Windows no inodes
//     either
package sqlite
