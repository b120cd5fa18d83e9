package inspect

// Risk is what a crash can lose by a setting.
type Risk struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	// Loses is what of acknowledged writes a crash can lose, and When by which crash.
	Loses string `json:"loses"`
	When  string `json:"when,omitempty"`

	severity Severity
	mend     string
}

const (
	nothing    = "nothing"
	newest     = "the newest acknowledged writes"
	everything = "everything"
	machine    = "power failure, crash of the operating system"
	standby    = "the standby is promoted"
)

// Durability tells for each setting by which commits are kept what a crash can lose. It is the
// table of docs/operate/database.md, as it is for one database.
func Durability(f *Facts) (risks []Risk) {
	add := func(setting, value string, lost bool, r Risk) {
		r.Setting, r.Value = setting, value
		if !lost {
			r = Risk{Setting: setting, Value: value, Loses: nothing}
		}
		risks = append(risks, r)
	}
	system := func(name, value string) string {
		return "ALTER SYSTEM SET " + name + " = " + value + "; SELECT pg_reload_conf()"
	}
	global := func(name, value string) string { return "SET GLOBAL " + name + " = " + value }
	switch f.Kind {
	case "sqlite":
		mode := f.setting("synchronous")
		r := Risk{Loses: newest + ", as far back as the last checkpoint", When: machine,
			severity: Warning, mend: "take synchronous=" + mode + " out of the database URL"}
		if mode == "OFF" {
			r.Loses, r.severity = newest+", or the whole file", Error
		}
		add("synchronous", mode, mode != "FULL", r)
	case "postgres":
		for _, name := range []string{"fsync", "full_page_writes"} {
			value := f.setting(name)
			add(name, value, value != "on", Risk{Loses: everything, When: machine, severity: Error,
				mend: system(name, "on")})
		}
		value, names := f.setting("synchronous_commit"), f.setting("synchronous_standby_names")
		// Sessions that write switch it on where it is off, so this loses nothing by itself.
		add("synchronous_commit", value, names != "" && (value == "local" || value == "remote_write"),
			Risk{Loses: newest, When: standby, severity: Warning,
				mend: system("synchronous_commit", "on")})
		add("synchronous_standby_names", names, names == "" && replicas(f) > 0, Risk{Loses: newest +
			", as many as the standby was behind", When: standby, severity: Note,
			mend: system("synchronous_standby_names", "'ANY 1 (*)'")})
	case "mysql":
		flush := f.setting("innodb_flush_log_at_trx_commit")
		r := Risk{Loses: "up to a second or so of acknowledged writes", When: machine,
			severity: Warning, mend: global("innodb_flush_log_at_trx_commit", "1")}
		if flush == "0" {
			r.When += ", crash of the database server"
		}
		add("innodb_flush_log_at_trx_commit", flush, flush != "1", r)
		sync := f.setting("sync_binlog")
		if f.on("log_bin") {
			add("sync_binlog", sync, sync != "1", Risk{Loses: newest, When: machine, severity: Warning,
				mend: global("sync_binlog", "1")})
		}
		double := f.setting("innodb_doublewrite")
		add("innodb_doublewrite", double, double == "OFF" || double == "0", Risk{Loses: everything,
			When: machine, severity: Error, mend: "start the server with innodb_doublewrite=ON"})
		method := f.setting("innodb_flush_method")
		add("innodb_flush_method", method, method == "nosync" || f.on("debug_no_sync"),
			Risk{Loses: everything, When: machine, severity: Error,
				mend: "start the server without innodb_flush_method=nosync and debug_no_sync"})
		if f.setting("wsrep_cluster_status") == "" && replicas(f) > 0 {
			value := "off"
			if f.on("Rpl_semi_sync_master_status") || f.on("Rpl_semi_sync_source_status") {
				value = "on"
			}
			add("semi-synchronous replication", value, value == "off", Risk{Loses: newest +
				", as many as the replica was behind", When: "the replica is promoted",
				severity: Note, mend: global("rpl_semi_sync_master_enabled", "ON")})
		}
	}
	return risks
}

// replicas counts those that follow the database.
func replicas(f *Facts) (n int) {
	for _, row := range f.Answers[Replication] {
		if !row.Bool("slot") {
			n++
		}
	}
	return n
}

func judgeDurability(f *Facts) (found []Finding) {
	if !f.asked(Settings) {
		return nil
	}
	for _, r := range Durability(f) {
		if r.Loses == nothing {
			continue
		}
		found = append(found, Finding{Name: "durability-" + r.Setting, Severity: r.severity,
			Says:  r.Setting + " is " + valueOf(r.Value),
			Means: "a crash can lose " + r.Loses + ": " + r.When,
			Mend:  r.mend})
	}
	if f.Kind == "postgres" && f.setting("synchronous_commit") == "off" {
		found = append(found, Finding{Name: "durability-synchronous_commit", Severity: Note,
			Says:  "synchronous_commit is off",
			Means: "nothing is lost: the sessions that write switch it on; other programs may rely on it",
			Mend:  "ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf()"})
	}
	return found
}

func valueOf(value string) string {
	if value == "" {
		return "empty"
	}
	return value
}
