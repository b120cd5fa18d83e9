package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun asks a server that answers as the documentation of Vault's HTTP API says. No vault has
// been asked.
func TestRun(t *testing.T) {
	ttl := "7200"
	fake := http.NewServeMux()
	reply := func(pattern, token string, body func(*http.Request) string) {
		fake.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Vault-Token") != token {
				http.Error(w, `{"errors":["permission denied"]}`, http.StatusForbidden)
				return
			}
			_, _ = w.Write([]byte(body(r)))
		})
	}
	reply("GET /v1/auth/token/lookup-self", "root", func(*http.Request) string {
		return `{"data":{"ttl":` + ttl + `}}`
	})
	reply("GET /v1/database/creds/rowkeeper", "root", func(*http.Request) string {
		return `{"lease_id":"database/creds/rowkeeper/x","lease_duration":3600,` +
			`"data":{"username":"v-rowkeeper-1","password":"Tr0ub4dor"}}`
	})
	reply("GET /v1/database/static-creds/rowkeeper", "root", func(*http.Request) string {
		return `{"data":{"username":"rowkeeper","password":"Tr0ub4dor","ttl":1800}}`
	})
	reply("GET /v1/database/creds/empty", "root", func(*http.Request) string {
		return `{"lease_duration":3600,"data":{"password":"Tr0ub4dor"}}`
	})
	reply("PUT /v1/auth/k8s/login", "", func(r *http.Request) string {
		var body struct{ Role, JWT string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Role != "pods" ||
			body.JWT != "a.b.c" {
			t.Errorf("%+v, %v", body, err)
		}
		return `{"auth":{"client_token":"of-the-pod","lease_duration":600}}`
	})
	reply("GET /v1/db/creds/rowkeeper", "of-the-pod", func(*http.Request) string {
		return `{"lease_duration":3600,"data":{"username":"v-rowkeeper-2","password":"Tr0ub4dor"}}`
	})
	fake.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"errors":[]}`, http.StatusNotFound)
	})
	server := httptest.NewServer(fake)
	defer server.Close()
	t.Setenv("HOME", t.TempDir()) // which may have a token
	t.Setenv("VAULT_ADDR", server.URL)
	t.Setenv("VAULT_MAX_RETRIES", "0")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a.b.c"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args, token, ttl, user string
		life                   time.Duration
		ends                   bool
		err                    string
	}{
		{"--role=rowkeeper", "root", "7200", "v-rowkeeper-1", time.Hour, true, ""},
		// The vault removes the user together with the token.
		{"--role=rowkeeper", "root", "900", "v-rowkeeper-1", 15 * time.Minute, true, ""},
		{"--role=rowkeeper", "root", "0", "v-rowkeeper-1", time.Hour, true, ""},
		{"--role=rowkeeper --static", "root", "60", "rowkeeper", 30 * time.Minute, false, ""},
		{"--role=rowkeeper --mount=db --kubernetes-role=pods --kubernetes-mount=k8s " +
			"--service-account-token=" + token, "", "", "v-rowkeeper-2", 10 * time.Minute, true, ""},
		{"--role=rowkeeper", "", "", "", 0, false, "set VAULT_TOKEN"},
		{"--role=rowkeeper", "other", "", "", 0, false, "permission denied"},
		{"--role=none", "root", "0", "", 0, false, "nothing at database/creds/none"},
		{"--role=empty", "root", "0", "", 0, false, "no user and password"},
		{"", "root", "0", "", 0, false, "give --role"},
	} {
		t.Setenv("VAULT_TOKEN", test.token)
		ttl = test.ttl
		var out bytes.Buffer
		began := time.Now()
		err := run(t.Context(), strings.Fields(test.args), &out)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) || out.Len() > 0 ||
				strings.Contains(err.Error(), "Tr0ub4dor") {
				t.Errorf("%s: %v, %s, want %q", test.args, err, &out, test.err)
			}
			continue
		}
		var a answer
		if err != nil || json.Unmarshal(out.Bytes(), &a) != nil || a.User != test.user ||
			a.Password != "Tr0ub4dor" || a.UserExpires != test.ends || a.Expires == nil {
			t.Errorf("%s: %v, %s", test.args, err, &out)
			continue
		}
		if life := a.Expires.Sub(began); life < test.life-time.Minute || life > test.life+time.Minute {
			t.Errorf("%s: it lives for %v, want %v", test.args, life, test.life)
		}
	}
}
