package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Report is what a doctor says of a database.
type Report struct {
	Kind    string    `json:"kind"`
	Version string    `json:"version"`
	Where   string    `json:"where"`
	Store   string    `json:"store"`
	Role    string    `json:"role,omitempty"`
	Time    time.Time `json:"time"`
	// Checked are the checks that were made.
	Checked []string `json:"checked"`
	// Findings are in order of severity, the worst first.
	Findings []Finding `json:"findings"`
	// Durability is what a crash can lose.
	Durability []Risk `json:"durability"`
	// Unseen is what the role could not see.
	Unseen []Unseen `json:"unseen"`
	// Repaired are the statements that have made indexes and statistics.
	Repaired []string `json:"repaired,omitempty"`
}

// Unseen is something that could not be looked at.
type Unseen struct {
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
}

// Worst is the severity of the worst finding. There is none if ok is false.
func (r *Report) Worst() (worst Severity, ok bool) {
	for _, f := range r.Findings {
		worst, ok = max(worst, f.Severity), true
	}
	return worst, ok
}

// Options say how to examine a database.
type Options struct {
	// Quick leaves out the consistency of the tables, which reads all of their rows.
	Quick bool
	// Repair makes indexes and statistics that are missing or wrong, and examines the database
	// again.
	Repair bool
	// LongTransaction is from when on a transaction is long. Default 5 minutes.
	LongTransaction time.Duration
	// PieceRows is how many rows are read at a time. Default 10,000.
	PieceRows int64
	// Progress, if not nil, is told how far the consistency of the tables was checked.
	Progress Progress
}

// Examine makes all checks.
func Examine(ctx context.Context, db *Database, o Options) (*Report, error) {
	r, err := examine(ctx, db, o)
	if err != nil || !o.Repair {
		return r, err
	}
	var repaired []string
	for _, f := range r.Findings {
		for _, statement := range f.repair {
			if err := db.Repair(ctx, statement); err != nil {
				return r, err
			}
			repaired = append(repaired, statement)
		}
	}
	if len(repaired) > 0 {
		r, err = examine(ctx, db, o)
	}
	if err == nil {
		r.Repaired = repaired
	}
	return r, err
}

func examine(ctx context.Context, db *Database, o Options) (*Report, error) {
	var questions []Question
	for _, c := range Checks {
		questions = append(questions, c.Reads...)
	}
	f, err := gather(ctx, db, questions)
	if err != nil {
		return lacksAll(ctx, db, err)
	}
	f.Long = cmp.Or(o.LongTransaction, f.Long)
	server := f.one(Server)
	r := &Report{Kind: server["product"], Version: server["version"], Where: db.Where,
		Store: db.Store, Role: server["role"], Time: f.After.UTC().Truncate(time.Second),
		Findings: []Finding{}, Unseen: []Unseen{}}
	for _, c := range Checks {
		if c.Of != nil && !slices.Contains(c.Of, f.Kind) || !slices.ContainsFunc(c.Reads, f.asked) {
			continue
		}
		r.Checked = append(r.Checked, c.Name)
		for _, finding := range c.Judge(f) {
			finding.Check = c.Name
			r.Findings = append(r.Findings, finding)
		}
	}
	if !o.Quick {
		found, err := consistency(ctx, f, o)
		if err != nil {
			return nil, err
		}
		r.Checked = append(r.Checked, "consistency")
		r.Findings = append(r.Findings, found...)
	}
	if f.asked(Settings) {
		r.Durability = Durability(f)
	}
	r.Unseen = f.whatUnseen()
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return r, nil
}

// lacksAll is the report of a database of which nothing can be read, if that is for want of rights.
// Otherwise it returns the error.
func lacksAll(ctx context.Context, db *Database, err error) (*Report, error) {
	rows, rightsErr := db.Ask(ctx, Rights)
	if contract.ClassOf(err) != contract.Denied || rightsErr != nil || len(rows) == 0 {
		return nil, err
	}
	f := &Facts{Database: db, Answers: map[Question][]Row{Rights: rows}}
	if server, err := db.Ask(ctx, Server); err == nil {
		f.Answers[Server] = server
	}
	server := f.one(Server)
	r := &Report{Kind: server["product"], Version: server["version"], Where: db.Where, Store: db.Store,
		Role: server["role"], Time: time.Now().UTC().Truncate(time.Second), Checked: []string{"rights"},
		Findings: judgeRights(f), Unseen: []Unseen{{What: "everything else", Why: err.Error()}}}
	r.Findings[0].Check = "rights"
	return r, nil
}

// whatUnseen lists what the role could not see, and what this kind of database never tells.
func (f *Facts) whatUnseen() []Unseen {
	list := []Unseen{}
	for q, err := range f.Unseen {
		list = append(list, Unseen{What: string(q), Why: err.Error()})
	}
	if row := f.one(Server); row["sees_others"] != "" && !row.Bool("sees_others") {
		right := "pg_read_all_stats"
		if f.Kind == "mysql" {
			right = "PROCESS"
		}
		list = append(list, Unseen{What: "the sessions and transactions of other roles",
			Why: "grant " + right + " to " + row["role"]})
	}
	if !f.asked(Disk) {
		list = append(list, Unseen{What: "how much room the disk has",
			Why: "this kind of database does not tell: ask the machine that it runs on"})
	}
	slices.SortFunc(list, func(a, b Unseen) int { return strings.Compare(a.What, b.What) })
	return list
}

// hidden stands for what a bug report need not tell.
const hidden = "…"

// Redacted is the report without names that the operator has given: of the machine, the database,
// roles, sessions, and of what the database said in its own words.
func (r *Report) Redacted() *Report {
	c := *r
	c.Where, c.Store, c.Role = hidden, hidden, hidden
	c.Findings, c.Unseen = slices.Clone(r.Findings), slices.Clone(r.Unseen)
	for i := range c.Findings {
		f := &c.Findings[i]
		if f.Who != "" {
			f.Who = hidden
		}
		if !slices.Contains(plainMends, f.Mend) {
			f.Mend = hidden
		}
		if slices.Contains(namingFindings, f.Name) {
			f.Says = hidden
		}
	}
	for i := range c.Unseen {
		c.Unseen[i].Why = ""
	}
	c.Durability = slices.Clone(r.Durability)
	for i := range c.Durability {
		if c.Durability[i].Setting == "synchronous_standby_names" && c.Durability[i].Value != "" {
			c.Durability[i].Value = hidden
		}
	}
	return &c
}

// plainMends are commands without names.
var plainMends = []string{"rowkeeper migrate up", "rowkeeper doctor --repair",
	damaged("", "").Mend}

// namingFindings say names that an operator has given.
var namingFindings = []string{"slot-inactive", "index-row-alone", "index-row-missing"}
