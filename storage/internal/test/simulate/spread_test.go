package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/directory"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// spreadRuns is for how many runs of one database there is one of spread stores.
const spreadRuns = 4

// The world of spread stores: names, of which each is in one of the databases, as the directory
// says, which is in the first one.
const (
	spreadNames = 8
	admins      = 2
	fronts      = 3
)

// databases are the names of the databases.
var databaseNames = []string{"a", "b", "c"}

// spreadPlan is a run of stores that are spread over databases.
type spreadPlan struct {
	// Kinds are those of the databases, in their order.
	Kinds []string
	// Window is with compaction by time.
	Window  bool
	Actions []action
}

// GoTest is a test that repeats the plan.
func (p spreadPlan) GoTest(name string) string {
	return fmt.Sprintf("func Test%s(t *testing.T) {\n\trepeat(t, spreadPlan{Kinds: %#v, Window: %t, "+
		"Actions: []action{\n", name, p.Kinds, p.Window) + asGo(p.Actions)
}

// What is done with stores, and how often: by processes that move them, and by clients.
var (
	adminVerbs = []string{"move", "move", "move", "move", "move", "move", "end", "end", "end", "undo",
		"undo", "drop", "create", "create", "drain", "rebuild"}
	frontVerbs = []string{"update", "update", "update", "create", "overwrite", "stale", "delete", "get",
		"get", "list", "watch", "watch", "unwatch"}
)

// spreadFaults are the kinds of faults.
var spreadFaults = []action{
	{Do: "fault", What: "refuse", Method: "Commit"},
	{Do: "fault", What: "refuse", Method: "Locked"},
	{Do: "fault", What: "refuse", Method: "read"},
	{Do: "fault", What: "lose", Method: "Commit"},
	{Do: "fault", What: "lose", Method: "Locked"},
	{Do: "fault", What: "lose", Method: "read"},
	{Do: "fault", What: "zombie", Method: "Commit"},
	{Do: "fault", What: "zombie late", Method: "Commit"},
	{Do: "fault", What: "zombie late", Method: "Locked"},
	{Do: "fault", What: "cut", Method: "Commit"},
	{Do: "fault", What: "cut", Method: "Locked"},
	{Do: "fault", What: "timeout", Method: "Locked"},
	{Do: "fault", What: "full", Method: "Commit"},
	{Do: "fault", What: "no answer", Method: "Commit"},
	{Do: "fault", What: "no answer", Method: "Locked"},
	{Do: "fault", What: "no answer", Method: "read"},
	{Do: "fault", What: "hang", Method: "Commit"},
	{Do: "fault", What: "hang", Method: "Locked"},
	{Do: "fault", What: "hang", Method: "read"},
	{Do: "fault", What: "slow", Method: "read"},
	{Do: "fault", What: "drop", Method: "notify"},
	{Do: "kill"},
	{Do: "kill"},
	{Do: "pause"},
	{Do: "pause"},
	{Do: "sleep"},
	{Do: "crash"},
	{Do: "crash at a commit"},
	{Do: "crash at a commit"},
	{Do: "cut"},
	{Do: "old"},
}

var spreadRepairs = []action{{Do: "start"}, {Do: "start"}, {Do: "resume"}, {Do: "resume"}, {Do: "join"}}

// newSpreadPlan makes the plan of a seed.
func newSpreadPlan(seed uint64) (p spreadPlan) {
	r := rand.New(rand.NewPCG(seed, 46))
	for range databaseNames {
		p.Kinds = append(p.Kinds, []string{"sqlite", "postgres", "mysql"}[r.IntN(3)])
	}
	p.Window = r.IntN(4) == 0
	var chosen []action
	for _, f := range spreadFaults {
		if r.IntN(3) == 0 {
			chosen = append(chosen, f)
		}
	}
	quiet, patience := 2+r.IntN(8), 4+r.IntN(60)
	names, keys := []int{1, 1, 2, 3, 5, spreadNames}[r.IntN(6)], 1+r.IntN(len(allKeys))
	for range 60 + r.IntN(200) {
		a := action{On: r.IntN(admins + fronts)}
		switch n := r.IntN(quiet + 3); {
		case n == 0 && len(chosen) > 0:
			a = chosen[r.IntN(len(chosen))]
			a.On = r.IntN(admins + fronts)
		case n == 1:
			a = spreadRepairs[r.IntN(len(spreadRepairs))]
			a.On = r.IntN(admins + fronts)
		case n <= 3:
			a.Do, a.On = adminVerbs[r.IntN(len(adminVerbs))], r.IntN(admins)
		default:
			a.Do, a.On = frontVerbs[r.IntN(len(frontVerbs))], admins+r.IntN(fronts)
		}
		a.Key, a.N = r.IntN(names)+spreadNames*r.IntN(keys), r.IntN(1000)
		a.Then, a.Seed = r.IntN(patience+1), r.Uint64()
		p.Actions = append(p.Actions, a)
	}
	return p
}

// spread is a run of stores that are spread over databases.
type spread struct {
	stage
	plan spreadPlan
	// databases are those that the directory names, by their names, and older copies of the first
	// one. mu protects them.
	databases map[string]*host
	members   []*member
	judge     spreadJudge
	file      string
	// fails is how many failures wait for a commit.
	fails int
}

// host is a database: a server for each of its stores, which fail together.
type host struct {
	name, kind string
	stores     map[string]*server
}

func newSpread(t *testing.T, p spreadPlan) *spread {
	w := &spread{plan: p, databases: map[string]*host{}, file: t.TempDir() + "/databases"}
	w.stage.begin()
	w.judge.begin(w)
	w.record = w.judge.record
	w.violation, w.violate = func() *violation { return w.judge.violation }, w.judge.violate
	var lines strings.Builder
	for i, name := range databaseNames {
		fmt.Fprintf(&lines, "%s sim:%s\n", name, name)
		w.add(&host{name: name, kind: p.Kinds[i], stores: map[string]*server{}}, contract.DefaultStore)
	}
	if err := os.WriteFile(w.file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range admins + fronts {
		w.members = append(w.members, &member{w: w, peer: peer{id: i}})
	}
	return w
}

// add adds a store to a database, if it is not there.
func (w *spread) add(h *host, store string) (added bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.databases[h.name] = h
	if h.stores[store] != nil {
		return false
	}
	s := newServer(h.name+"/"+store, h.kind, false)
	s.database, s.store = h.name, store
	s.begun = func(*contract.Group) {}
	s.wrote = func(g *contract.Group, r *contract.GroupResult) { w.judge.wrote(g, r) }
	s.announce = func(r contract.Revision) { w.announce(s, r) }
	h.stores[store] = s
	w.servers = append(w.servers, s)
	return true
}

// store returns a store of a database, nil if it is not there.
func (w *spread) store(database, store string) *server {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.databases[database]; h != nil {
		return h.stores[store]
	}
	return nil
}

// announce tells all who listen at a server.
func (w *spread) announce(s *server, r contract.Revision) {
	w.mu.Lock()
	listeners := slices.Clone(s.listeners)
	w.mu.Unlock()
	for _, b := range listeners {
		if w.listens(b) {
			w.announceTo(b, r)
		}
	}
}

// driver is a process's way to the databases.
type driver struct {
	w      *spread
	p      *peer
	killed chan struct{}
}

func (driver) Name() string { return "sim" }

func (driver) Schemes() []string { return []string{"sim"} }

func (driver) Examples() []string { return []string{"sim:a"} }

func (driver) Migrate(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, nil
}

func (driver) Status(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, nil
}

func (driver) Query(context.Context, string, contract.DriverOptions, contract.Query,
	func([]string, []any) error) error {
	return errors.New("there is no SQL")
}

// host finds the database of a URL, and a way to its default store.
func (d driver) host(url string) (*host, *backend) {
	name := strings.TrimPrefix(url, "sim:")
	s := d.w.store(name, contract.DefaultStore)
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	return d.w.databases[name], d.w.newBackend(s, d.p, d.killed)
}

func (d driver) CreateStore(ctx context.Context, url string,
	o contract.DriverOptions) (bool, error) {
	h, b := d.host(url)
	return ask(b, ctx, "beside", "CreateStore", o.StoreName(), func(context.Context, *call) (bool, error) {
		return d.w.add(h, o.StoreName()), nil
	})
}

func (d driver) Stores(ctx context.Context, url string, o contract.DriverOptions) ([]string, error) {
	h, b := d.host(url)
	list := func(context.Context, *call) (names []string, err error) {
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
		for name, s := range h.stores {
			if o.Dropped || !s.db.Version().State().Dropped() {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, nil
	}
	return ask(b, ctx, "beside", "Stores", "", list)
}

func (d driver) Connect(_ context.Context, url string,
	_ contract.DriverOptions) (contract.Database, error) {
	h, way := d.host(url)
	return contract.Separate(func(ctx context.Context, name string) (contract.Backend, error) {
		s, err := ask(way, ctx, "read", "Store", name, func(context.Context, *call) (*server, error) {
			return d.w.store(h.name, name), nil
		})
		if err != nil {
			return nil, err
		}
		if s == nil {
			return nil, contract.NoStore(name)
		}
		b := d.w.newBackend(s, d.p, d.killed)
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
		s.listeners = append(s.listeners, b)
		return b.as(h.kind), nil
	}), nil
}

// begin starts the processes, and creates the stores.
func (w *spread) begin() {
	for _, m := range w.members {
		m.start("a")
	}
	w.drive(func() bool { return w.up() })
	for i := range spreadNames {
		w.request(w.members[0], "a creation", func(ctx context.Context, m *member) error {
			_, err := m.d.Create(ctx, nameOf(i), databaseNames[i%len(databaseNames)])
			return err
		})
	}
}

// run carries out the plan, repairs everything, and looks whether all is well.
func (w *spread) run() {
	w.begin()
	w.carryOut(w.plan.Actions, w.act, func(r *rand.Rand) {
		w.turn(r)
		w.failing(r)
	})
	if !w.found() {
		w.heal()
	}
	w.end()
}

func (w *spread) up() bool {
	return !slices.ContainsFunc(w.members, func(m *member) bool { return m.state != up })
}

func nameOf(i int) string { return fmt.Sprint("s", i%spreadNames) }

// act does what an action says.
func (w *spread) act(a *action) {
	m := w.members[a.On]
	before := w.report.Faults
	switch a.Do {
	case "fault":
		w.faults = append(w.faults, a)
		return
	case "start":
		m.start("a")
	case "kill":
		m.kill()
	case "pause":
		m.paused = true
	case "sleep":
		// The call that it makes next arrives when others have gone on.
		m.paused = true
		<-time.After(time.Duration(a.N) * time.Millisecond)
	case "resume":
		m.paused = false
	case "cut":
		m.cut = true
	case "join":
		m.cut = false
	case "crash":
		w.crash(w.databases[databaseNames[a.N%len(databaseNames)]])
	case "crash at a commit":
		w.fails++
		return
	case "old":
		if m.id < admins {
			return
		}
		m.kill()
		m.start(w.older(a.N % 60))
	default:
		if m.id < admins {
			m.admin(a)
		} else {
			m.client(a)
		}
		return
	}
	if before == w.report.Faults && slices.ContainsFunc(spreadFaults, func(f action) bool {
		return f.Do == a.Do
	}) {
		w.count(a.Do)
	}
}

// older makes a copy of the database that holds the directory, as it was some versions ago.
func (w *spread) older(n int) string {
	h := &host{name: fmt.Sprint("old-", w.turns.now()), kind: "postgres", stores: map[string]*server{}}
	w.add(h, contract.DefaultStore)
	s, versions := h.stores[contract.DefaultStore], w.judge.control
	s.db.Return(versions[max(0, len(versions)-1-n)])
	s.flush()
	return h.name
}

// crash takes the power from a database.
func (w *spread) crash(h *host) {
	if h.kind == "sqlite" {
		for _, m := range w.members {
			m.kill()
		}
	}
	for _, s := range w.all() {
		if s.database != h.name {
			continue
		}
		s.turnClock(outage)
		s.reboot()
		w.judge.lose(s)
		w.disconnect(s, "the power failed")
	}
}

// failing takes the power from a database that is to fail, when a commit of it is visible, and not
// durable yet.
func (w *spread) failing(r *rand.Rand) {
	if w.fails == 0 {
		return
	}
	w.settle()
	for _, st := range w.ready() {
		if st.place == "flush" && r.IntN(4) == 0 {
			w.fails--
			w.count("crash at a commit")
			w.crash(w.databases[st.c.b.s.database])
			return
		}
	}
}

// request is stage.request with a minute for each try.
func (w *spread) request(m *member, what string, f func(context.Context, *member) error) {
	w.stage.request(m.id, what, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return f(ctx, m)
	}, func(error) {})
}

// heal repairs everything. Then what is in hand has to end, and all front ends have to work.
func (w *spread) heal() {
	w.log("heal")
	w.faults, w.fails = nil, 0
	for _, m := range w.members {
		if m.paused = false; m.cut || m.old {
			m.kill()
		}
		m.cut = false
	}
	if !w.drive(func() bool {
		well := true
		for _, m := range w.members {
			m.start("a")
			well = well && m.state == up && m.pending == 0 && !m.working
		}
		return well
	}) {
		w.judge.violate("liveness", "a request or a start does not end")
	}
	for i := range spreadNames {
		name := nameOf(i)
		w.request(w.members[i%admins], "the end of what is done with "+name,
			func(ctx context.Context, m *member) error { return m.finish(ctx, name, i%3 == 0) })
		for n, m := range w.members[admins:] {
			if n != i%fronts && w.judge.stories[name].quiet() {
				continue // one is enough
			}
			w.request(m, "a write of "+name, func(ctx context.Context, m *member) error {
				s, release, err := m.pool.Use(ctx, name)
				if err != nil {
					return err
				}
				defer release()
				return m.heal(ctx, s)
			})
		}
	}
	w.settle()
	w.judge.healed()
}

// finish ends what is done with a name, so that it is open.
func (m *member) finish(ctx context.Context, name string, undo bool) error {
	r, err := m.d.Get(ctx, name)
	if err != nil {
		return err
	}
	switch r.State {
	case directory.Moving:
		if undo {
			_, err = m.d.Undo(ctx, name)
		} else {
			_, err = m.d.MoveTo(ctx, name, r.To, directory.MoveOptions{})
		}
	case directory.Opening:
		_, err = m.d.MoveTo(ctx, name, r.Database, directory.MoveOptions{})
	case directory.Undoing:
		_, err = m.d.Undo(ctx, name)
	case directory.Dropping:
		_, err = m.d.Drop(ctx, name)
	case directory.Open:
		return nil
	default:
		_, err = m.d.Create(ctx, name, "b")
	}
	if err == nil {
		err = m.finish(ctx, name, undo)
	}
	return err
}

// end ends everything that is still there.
func (w *spread) end() {
	violation := w.judge.violation
	for _, m := range w.members {
		m.paused = false
		m.kill()
	}
	w.finish()
	if violation != nil {
		w.judge.violation = violation
	}
}

func (p spreadPlan) actions() []action { return p.Actions }

func (p spreadPlan) with(actions []action) spreadPlan {
	p.Actions = actions
	return p
}

func (p spreadPlan) simulate(t *testing.T, keep bool) *stage {
	return perform(t, keep, func(t *testing.T) scene { return newSpread(t, p) })
}

// TestSpread makes runs of spread stores from seeds, and shortens the first that fails.
func TestSpread(t *testing.T) { fromSeeds(t, max(*runs/spreadRuns, 1), newSpreadPlan) }
