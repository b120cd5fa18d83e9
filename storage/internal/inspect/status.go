package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// Status is what an operator wants to see at a glance. What is unknown is nil, and is written as
// null.
type Status struct {
	Kind    string    `json:"kind"`
	Version string    `json:"version"`
	Where   string    `json:"where"`
	Time    time.Time `json:"time"`
	Schema  int64     `json:"schema"`
	// Newest is the newest schema that this program knows.
	Newest int64 `json:"newestSchema"`
	// Standby: the answers are those of a standby, and may be late.
	Standby bool `json:"standby"`

	Store string `json:"store"`
	// Head is the newest revision, and Written when it was written.
	Head    int64     `json:"head"`
	Written time.Time `json:"written"`
	// Epoch counts the fences: a store begins with 1.
	Epoch     int64 `json:"epoch"`
	Compacted int64 `json:"compacted"`
	Swept     int64 `json:"swept"`
	// SweepDebt is how many revisions are compacted and not swept.
	SweepDebt int64 `json:"sweepDebt"`
	// MaxObjects and MaxBytes are the quota, 0 for none.
	MaxObjects int64 `json:"maxObjects"`
	MaxBytes   int64 `json:"maxBytes"`

	// Total and Live are the bytes of the tables, and of what of them is in use. They are those of
	// all stores, where stores share tables.
	Total *int64 `json:"totalBytes"`
	Live  *int64 `json:"liveBytes"`
	// Free is what the disk has left.
	Free *int64 `json:"freeBytes"`
	// Resources are the ones with the most objects, and Objects is how many objects all have.
	Objects   int64      `json:"objects"`
	Resources []Resource `json:"resources"`
	// Others is how many resources are not among them.
	Others int `json:"otherResources"`

	// Servers are what uses the database, null where the database does not know.
	Servers []Client `json:"servers"`
	// Replicas follow the database, null where the database does not know.
	Replicas []Replica `json:"replicas"`
	Unseen   []Unseen  `json:"unseen"`

	// LastBackup and Certificates are what files say; see [Status.Print].
	LastBackup   *BackupFile   `json:"lastBackup"`
	Certificates []Certificate `json:"certificates"`
}

// BackupFile is a backup in a file, which was made of the store when its head was at Revision.
type BackupFile struct {
	File     string    `json:"file"`
	Revision int64     `json:"revision"`
	Objects  int64     `json:"objects"`
	Time     time.Time `json:"time"`
}

// Certificate is a certificate in a file.
type Certificate struct {
	File      string    `json:"file"`
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Resource is a directory of keys, which has the objects of a resource.
type Resource struct {
	Directory string `json:"directory"`
	Objects   int64  `json:"objects"`
}

// Client is a program that uses the database: one or several servers that have the same address.
type Client struct {
	User        string `json:"user"`
	Application string `json:"application,omitempty"`
	Address     string `json:"address"`
	Connections int64  `json:"connections"`
	// Processes is how many servers listen for each other's writes, 0 if that is not known.
	Processes int64 `json:"processes,omitempty"`
	// Seconds is how old the oldest connection is.
	Seconds int64 `json:"seconds"`
}

// Replica is a standby, a replica, or a slot that keeps what one has not read yet.
type Replica struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Sync  string `json:"sync,omitempty"`
	// Behind is how many bytes it is behind.
	Behind int64 `json:"behindBytes"`
}

const (
	// mostDirectories bounds how many directories are counted. A store of Kubernetes has hundreds.
	mostDirectories = 2000
	// largest is how many resources are told.
	largest = 10
)

// Look reads the status.
func Look(ctx context.Context, db *Database) (*Status, error) {
	f, err := gather(ctx, db, []Question{Sizes, Servers, Replication, Disk})
	if err != nil {
		return nil, err
	}
	server, store := f.one(Server), f.one(Store)
	s := &Status{Kind: server["product"], Version: server["version"], Where: db.Where,
		Time: f.After.UTC().Truncate(time.Second), Schema: f.one(Schema).Int("version"),
		Newest: db.Newest, Standby: server.Bool("standby"), Store: db.Store,
		Head: store.Int("head"), Written: time.UnixMicro(store.Int("written")).UTC(),
		Epoch: store.Int("epoch"), Compacted: store.Int("compacted"), Swept: store.Int("swept"),
		SweepDebt:  max(store.Int("compacted")-store.Int("swept"), 0),
		MaxObjects: store.Int("max_objects"), MaxBytes: store.Int("max_bytes"), Resources: []Resource{}}
	s.Total, s.Live = f.number(Sizes, "total"), f.number(Sizes, "live")
	s.Free = f.number(Disk, "free")
	if f.asked(Servers) {
		s.Servers = []Client{}
		for _, row := range f.Answers[Servers] {
			s.Servers = append(s.Servers, Client{User: row["user"], Application: row["application"],
				Address: row["address"], Connections: row.Int("connections"),
				Processes: row.Int("processes"), Seconds: row.Int("since")})
		}
	}
	if f.asked(Replication) {
		s.Replicas = []Replica{}
		for _, row := range f.Answers[Replication] {
			s.Replicas = append(s.Replicas, Replica{Name: row["name"], State: row["state"],
				Sync: row["sync"], Behind: row.Int("behind")})
		}
	}
	if err := s.count(ctx, f); err != nil {
		return nil, err
	}
	s.Unseen = f.whatUnseen()
	return s, nil
}

// number is a number of an answer, nil if there is none.
func (f *Facts) number(q Question, column string) *int64 {
	row := f.one(q)
	if row[column] == "" {
		return nil
	}
	n := row.Int(column)
	return &n
}

// count counts the objects of each resource: it finds the first key after each directory, and
// counts between. So it reads as many keys as there are, and no value.
func (s *Status) count(ctx context.Context, f *Facts) error {
	var all []Resource
	for key := ""; len(all) < mostDirectories; {
		rows, err := f.Ask(ctx, NextKey, []byte(key))
		if err == nil && len(rows) > 0 {
			directory := DirectoryOf(rows[0]["key"])
			end := after(directory)
			var n []Row
			if n, err = f.Ask(ctx, CountKeys, []byte(rows[0]["key"]), []byte(end)); err == nil {
				if len(n) > 0 {
					all = append(all, Resource{directory, n[0].Int("n")})
				}
				key = end
				continue
			}
		}
		if err = f.unseen(ctx, NextKey, err); err != nil {
			return err
		}
		break
	}
	for _, r := range all {
		s.Objects += r.Objects
	}
	slices.SortStableFunc(all, func(a, b Resource) int { return cmp.Compare(b.Objects, a.Objects) })
	s.Resources = append(s.Resources, all[:min(len(all), largest)]...)
	s.Others = len(all) - len(s.Resources)
	return nil
}

// DirectoryOf returns the directory of the resource to which a key belongs, as far as the key
// tells: /registry/pods/ for a kind of Kubernetes, /registry/example.com/widgets/ where a group,
// which has a dot, comes first. A key that is in no directory stands for itself.
func DirectoryOf(key string) string {
	parts := strings.SplitAfterN(strings.TrimPrefix(key, "/"), "/", 4)
	depth := 1
	if strings.HasPrefix(key, "/") {
		if depth = 2; len(parts) > 1 && strings.Contains(parts[1], ".") {
			depth = 3
		}
	}
	if depth = min(depth, len(parts)-1); depth < 1 {
		return key
	}
	return key[:len(key)-len(strings.TrimPrefix(key, "/"))] + strings.Join(parts[:depth], "")
}

// after is the first key that does not belong to a directory, or that follows a key that is in
// none.
func after(directory string) string {
	if name, ok := strings.CutSuffix(directory, "/"); ok {
		return name + "0" // the successor of '/'
	}
	return directory + "\x00"
}

// Redacted is the status without the names that the operator has given.
func (s *Status) Redacted() *Status {
	c := *s
	c.Where, c.Store = hidden, hidden
	if s.LastBackup != nil {
		backup := *s.LastBackup
		backup.File, c.LastBackup = hidden, &backup
	}
	c.Certificates = slices.Clone(s.Certificates)
	for i := range c.Certificates {
		c.Certificates[i].File, c.Certificates[i].Subject = hidden, hidden
	}
	c.Resources, c.Servers = slices.Clone(s.Resources), slices.Clone(s.Servers)
	c.Replicas, c.Unseen = slices.Clone(s.Replicas), slices.Clone(s.Unseen)
	for i := range c.Resources {
		if !wellKnown(c.Resources[i].Directory) {
			c.Resources[i].Directory = hidden
		}
	}
	for i := range c.Servers {
		c.Servers[i].User, c.Servers[i].Application, c.Servers[i].Address = hidden, "", hidden
	}
	for i := range c.Replicas {
		c.Replicas[i].Name = hidden
	}
	for i := range c.Unseen {
		c.Unseen[i].Why = ""
	}
	return &c
}

// wellKnown tells whether a directory is one of Kubernetes' own: its name tells nothing of who uses
// it.
func wellKnown(directory string) bool {
	parts := strings.Split(strings.Trim(directory, "/"), "/")
	if parts[0] != "registry" {
		return false
	}
	return len(parts) == 2 || strings.HasSuffix(parts[1], ".k8s.io")
}
