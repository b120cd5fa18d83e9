package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestRun takes the token from a server that answers as the managed identity of an app does. The
// database, which would judge the token, has not been asked.
func TestRun(t *testing.T) {
	refuse := false
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse || r.Header.Get("X-IDENTITY-HEADER") != "of-the-app" {
			http.Error(w, `{"error":"unauthorized_client","error_description":"no"}`,
				http.StatusUnauthorized)
			return
		}
		if got := r.FormValue("resource"); got != "https://ossrdbms-aad.database.windows.net" {
			t.Errorf("the token is for %q", got)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"Tr0ub4dor","expires_on":"%d","token_type":"Bearer",`+
			`"resource":"https://ossrdbms-aad.database.windows.net"}`, time.Now().Add(time.Hour).Unix())
	}))
	defer fake.Close()
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
		"AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME"} {
		t.Setenv(name, "") // which is undone at the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
	t.Setenv("IDENTITY_ENDPOINT", fake.URL)
	t.Setenv("IDENTITY_HEADER", "of-the-app")
	for args, user := range map[string]string{"": "", "--user=rowkeeper": "rowkeeper"} {
		var (
			out bytes.Buffer
			a   answer
		)
		began := time.Now()
		if err := run(t.Context(), strings.Fields(args), &out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &a); err != nil || a.User != user || a.Password != "Tr0ub4dor" ||
			a.Expires.Before(began.Add(50*time.Minute)) || a.Expires.After(began.Add(70*time.Minute)) {
			t.Errorf("%v, %s", err, &out)
		}
	}
	// The library keeps tokens by their scope.
	refuse = true
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--scope=https://elsewhere/.default"}, &out); err == nil ||
		out.Len() > 0 || strings.Contains(err.Error(), "Tr0ub4dor") {
		t.Errorf("refused: %v, %s", err, &out)
	}
	if err := run(t.Context(), []string{"x"}, &out); err == nil {
		t.Error("an argument is taken")
	}
}
