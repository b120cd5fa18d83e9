package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun takes the token from a server that answers as Google's does to a service account. Cloud
// SQL, which would judge the token, has not been asked.
func TestRun(t *testing.T) {
	refuse := false
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		parts := strings.Split(r.FormValue("assertion"), ".")
		if len(parts) != 3 {
			t.Fatalf("the assertion is %q", parts)
		}
		var claims struct{ Iss, Scope string }
		text, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil || json.Unmarshal(text, &claims) != nil || claims.Scope != scope ||
			claims.Iss != "rowkeeper@project.iam.gserviceaccount.com" {
			t.Errorf("%s, %v", text, err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"Tr0ub4dor","expires_in":3600,"token_type":"Bearer"}`))
	}))
	defer fake.Close()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.Marshal(map[string]string{"type": "service_account", "token_uri": fake.URL,
		"client_email": "rowkeeper@project.iam.gserviceaccount.com", "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "account.json")
	if err := os.WriteFile(file, account, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	for args, user := range map[string]string{"": "", "--user=rowkeeper@project.iam": "rowkeeper@project.iam"} {
		var (
			out bytes.Buffer
			a   answer
		)
		began := time.Now()
		if err := run(t.Context(), strings.Fields(args), &out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &a); err != nil || a.User != user || a.Password != "Tr0ub4dor" ||
			a.Expires == nil || a.Expires.Before(began.Add(50*time.Minute)) ||
			a.Expires.After(began.Add(70*time.Minute)) {
			t.Errorf("%v, %s", err, &out)
		}
	}
	refuse = true
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out); err == nil || !strings.Contains(err.Error(), "invalid_grant") ||
		out.Len() > 0 {
		t.Errorf("refused: %v, %s", err, &out)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file+".none")
	if err := run(t.Context(), nil, &out); err == nil || !strings.Contains(err.Error(), "account.json.none") {
		t.Errorf("no file: %v", err)
	}
	if err := run(t.Context(), []string{"x"}, &out); err == nil {
		t.Error("an argument is taken")
	}
}
