package commandline

import "testing"

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{
		"/srv/my-api/.api/kubeconfig":   "/srv/my-api/.api/kubeconfig",
		"/srv/Büro/kubeconfig":          "/srv/Büro/kubeconfig",
		"/srv/my api/kubeconfig":        "'/srv/my api/kubeconfig'",
		"/srv/copy(1)/kubeconfig":       "'/srv/copy(1)/kubeconfig'",
		"/srv/joe's $HOME/kubeconfig":   `'/srv/joe'\''s $HOME/kubeconfig'`,
		"/srv/a;b/kubeconfig":           "'/srv/a;b/kubeconfig'",
		"":                              "''",
		"http://[::1]:2379":             "'http://[::1]:2379'",
		"unix:///run/rowkeeper/db.sock": "unix:///run/rowkeeper/db.sock",
	} {
		if got := Quote(word); got != want {
			t.Errorf("%q is written as %s, want %s", word, got, want)
		}
	}
}
