package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun takes the credentials from a server that answers as the agent of a pod does. RDS, which
// would judge the token, has not been asked.
func TestRun(t *testing.T) {
	life := time.Hour
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "of-the-pod" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId":"AKIDOFTHETEST","SecretAccessKey":"Tr0ub4dor","Token":"session",`+
			`"Expiration":%q}`, time.Now().Add(life).UTC().Format(time.RFC3339))
	}))
	defer fake.Close()
	nothing := filepath.Join(t.TempDir(), "none")
	for name, value := range map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": fake.URL,
		"AWS_CONTAINER_AUTHORIZATION_TOKEN": "of-the-pod", "AWS_CONFIG_FILE": nothing,
		"AWS_SHARED_CREDENTIALS_FILE": nothing, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "",
		"AWS_DEFAULT_REGION": "", "AWS_PROFILE": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_MAX_ATTEMPTS": "1"} {
		t.Setenv(name, value)
	}
	const good = "--endpoint=db.example.com:5432 --user=rowkeeper --region=eu-central-1"
	for _, want := range []time.Duration{15 * time.Minute, 5 * time.Minute, time.Minute} {
		var out bytes.Buffer
		began := time.Now()
		if err := run(t.Context(), strings.Fields(good), &out); err != nil {
			t.Fatal(err)
		}
		var a answer
		if err := json.Unmarshal(out.Bytes(), &a); err != nil || a.User != "rowkeeper" ||
			strings.Contains(out.String(), "Tr0ub4dor") {
			t.Errorf("%v, %s", err, &out)
		}
		if got := a.Expires.Sub(began); got < want-30*time.Second || got > want+30*time.Second {
			t.Errorf("it lives for %v, want %v", got, want)
		}
		u, err := url.Parse("https://" + a.Password)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		if u.Host != "db.example.com:5432" || q.Get("Action") != "connect" ||
			q.Get("DBUser") != "rowkeeper" || q.Get("X-Amz-Security-Token") != "session" ||
			!strings.Contains(q.Get("X-Amz-Credential"), "AKIDOFTHETEST") ||
			!strings.Contains(q.Get("X-Amz-Credential"), "/eu-central-1/rds-db/") ||
			q.Get("X-Amz-Signature") == "" {
			t.Errorf("the token is %s", a.Password)
		}
		// What signs the token ends before it. The library subtracts five minutes.
		life = map[time.Duration]time.Duration{15 * time.Minute: 10 * time.Minute}[want]
	}
	for args, want := range map[string]string{
		"--user=rowkeeper --region=x":                     "give --endpoint",
		"--endpoint=db.example.com:5432 --user=rowkeeper": "give --region",
		"--endpoint=db --user=u --region=x":               "missing a port",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), strings.Fields(args), &out); err == nil ||
			!strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v, %s, want %q", args, err, &out, want)
		}
	}
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "other")
	var out bytes.Buffer
	if err := run(t.Context(), strings.Fields(good), &out); err == nil || out.Len() > 0 {
		t.Errorf("refused by the agent: %v, %s", err, &out)
	}
}
