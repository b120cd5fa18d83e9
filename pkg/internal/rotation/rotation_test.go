package rotation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	testclock "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// cluster keeps a Secret and APIServices, as an API server does.
type cluster struct {
	t        *testing.T
	secret   *storedSecret
	services *storedServices
	clock    *testclock.FakeClock
	// late are the APIServices as they were when the clock was moved last.
	late []unstructured.Unstructured
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, secret: &storedSecret{}, services: &storedServices{},
		clock: testclock.NewFakeClock(time.Now())}
	for i, service := range []string{"ours", "ours", "theirs"} {
		s := unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": fmt.Sprintf("%s-%d", service, i)},
			"spec": map[string]any{"caBundle": "AAAA", "service": map[string]any{
				"namespace": "default", "name": service}},
		}}
		c.services.write(&s)
	}
	return c
}

var errNotFound = apierrors.NewNotFound(schema.GroupResource{}, "")

func conflict(name string) error {
	return apierrors.NewConflict(schema.GroupResource{}, name, errors.New("it has changed"))
}

// storedSecret is the one Secret of a namespace. It is nil if there is none.
type storedSecret struct {
	secret  *corev1.Secret
	version int
}

func (s *storedSecret) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	if s.secret == nil {
		return nil, errNotFound
	}
	return s.secret.DeepCopy(), nil
}

func (s *storedSecret) write(secret *corev1.Secret) (*corev1.Secret, error) {
	s.version++
	s.secret = secret.DeepCopy()
	s.secret.ResourceVersion = strconv.Itoa(s.version)
	return s.secret.DeepCopy(), nil
}

func (s *storedSecret) Create(_ context.Context, secret *corev1.Secret,
	_ metav1.CreateOptions) (*corev1.Secret, error) {
	if s.secret != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, secret.Name)
	}
	return s.write(secret)
}

func (s *storedSecret) Update(_ context.Context, secret *corev1.Secret,
	_ metav1.UpdateOptions) (*corev1.Secret, error) {
	if s.secret == nil {
		return nil, errNotFound
	}
	if secret.ResourceVersion != s.secret.ResourceVersion {
		return nil, conflict(secret.Name)
	}
	return s.write(secret)
}

// storedServices are APIServices, which can be listed and patched.
type storedServices struct {
	dynamic.ResourceInterface
	all     []unstructured.Unstructured
	version int
}

func (s *storedServices) List(context.Context,
	metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return (&unstructured.UnstructuredList{Items: s.all}).DeepCopy(), nil
}

// write stores an APIService, in place of the one of its name.
func (s *storedServices) write(service *unstructured.Unstructured) {
	s.version++
	service.SetResourceVersion(strconv.Itoa(s.version))
	i := slices.IndexFunc(s.all, func(u unstructured.Unstructured) bool {
		return u.GetName() == service.GetName()
	})
	if i < 0 {
		s.all = append(s.all, unstructured.Unstructured{})
		i = len(s.all) - 1
	}
	s.all[i] = *service.DeepCopy()
}

func (s *storedServices) Patch(_ context.Context, name string, kind types.PatchType, patch []byte,
	_ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	i := slices.IndexFunc(s.all, func(u unstructured.Unstructured) bool {
		return u.GetName() == name
	})
	if i < 0 || kind != types.MergePatchType {
		return nil, errNotFound
	}
	var change map[string]any
	if err := json.Unmarshal(patch, &change); err != nil {
		return nil, err
	}
	patched := s.all[i].DeepCopy()
	merge(patched.Object, change)
	if patched.GetResourceVersion() != s.all[i].GetResourceVersion() {
		return nil, conflict(name)
	}
	s.write(patched)
	return patched, nil
}

// merge is a merge patch that removes nothing.
func merge(into, change map[string]any) {
	for key, value := range change {
		below, isMap := value.(map[string]any)
		old, wasMap := into[key].(map[string]any)
		if isMap && wasMap {
			merge(old, below)
		} else {
			into[key] = value
		}
	}
}

// step is the time between two rounds of a replica.
const step = 5 * time.Minute

// step moves the clock.
func (c *cluster) step() {
	c.late = c.list()
	c.clock.Step(step)
}

func (c *cluster) list() []unstructured.Unstructured {
	list, err := c.services.List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

func (c *cluster) rotator() *Rotator {
	c.t.Helper()
	r, err := New(&rest.Config{}, Options{Namespace: "default", Service: "ours",
		Authority: 10 * time.Hour, Certificate: time.Hour, Interval: step, Clock: c.clock})
	if err != nil {
		c.t.Fatal(err)
	}
	r.secrets, r.apiServices = c.secret, c.services
	return r
}

// trusted returns why an API server of the cluster would refuse what a replica serves with. It may
// have seen the last changes of the APIServices or not.
func (c *cluster) trusted(r *Rotator) error {
	c.t.Helper()
	certPEM, _ := r.CurrentCertKeyContent()
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range append(c.list(), c.late...) {
		if !c.ours(s) {
			if !has(s, []byte{0, 0, 0}) {
				c.t.Fatalf("the APIService of another Service was changed: %v", s.Object)
			}
			continue
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle(s))
		if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots,
			DNSName: "ours.default.svc", CurrentTime: c.clock.Now()}); err != nil {
			return fmt.Errorf("by %s: %w", s.GetName(), err)
		}
	}
	return nil
}

// until repeats a round as Run does.
func until(ctx context.Context, r *Rotator) error {
	for {
		if err := r.round(ctx); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

// between are Secrets, between whose requests other things happen.
type between struct {
	secrets
	happens func()
}

func (b between) Get(ctx context.Context, name string,
	o metav1.GetOptions) (*corev1.Secret, error) {
	b.happens()
	defer b.happens()
	return b.secrets.Get(ctx, name, o)
}

func (b between) Create(ctx context.Context, s *corev1.Secret,
	o metav1.CreateOptions) (*corev1.Secret, error) {
	defer b.happens()
	return b.secrets.Create(ctx, s, o)
}

func (b between) Update(ctx context.Context, s *corev1.Secret,
	o metav1.UpdateOptions) (*corev1.Secret, error) {
	defer b.happens()
	return b.secrets.Update(ctx, s, o)
}

// TestRotation: three replicas make rounds, in any order and within each other's, while the clock
// goes through many lifetimes. All of them serve with what all APIServices trust, all the time.
func TestRotation(t *testing.T) {
	c := newCluster(t)
	random := rand.New(rand.NewPCG(1, 2))
	replicas := []*Rotator{c.rotator(), c.rotator(), c.rotator()}
	busy, done := map[*Rotator]bool{}, map[*Rotator]time.Time{}
	var round func(r *Rotator)
	check := func() {
		for i, r := range replicas {
			// One that was held up in its round may serve with what has expired.
			if c.clock.Since(done[r]) > step {
				continue
			}
			if err := c.trusted(r); err != nil {
				t.Fatalf("at %v, replica %d is not trusted: %v", c.clock.Now(), i, err)
			}
		}
	}
	for _, r := range replicas {
		r.secrets = between{r.secrets, func() {
			if random.IntN(20) == 0 {
				c.step()
			}
			if other := replicas[random.IntN(len(replicas))]; !busy[other] && random.IntN(4) == 0 {
				round(other)
			}
		}}
	}
	round = func(r *Rotator) {
		busy[r] = true
		defer delete(busy, r)
		if err := until(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		done[r] = c.clock.Now()
		check()
	}
	if err := until(t.Context(), c.rotator()); err != nil { // nothing is trusted before
		t.Fatal(err)
	}
	c.late = c.list()
	seen := map[string]bool{}
	for range 200 {
		for _, i := range random.Perm(len(replicas)) {
			round(replicas[i])
			certPEM, _ := replicas[i].CurrentCertKeyContent()
			seen[string(certPEM)] = true
		}
		c.step()
		check()
	}
	// at least 25 hours: certificates are renewed after 40 minutes, and authorities after 7 hours
	if len(seen) < 30 {
		t.Errorf("%d certificates were seen", len(seen))
	}
	if n := bytes.Count(c.secret.secret.Data[caCert], []byte("BEGIN")); n > 2 {
		t.Errorf("the Secret has %d authorities, though the third last has expired", n)
	}
}

// TestDeletedSecret: a new authority comes, made by a replica that runs or by one that starts, when
// the Secret is deleted, or when the data is removed of one that the manifests have made. What was
// signed before is trusted on, also by an API server that has not heard of the new authority. After
// an hour the old authority is gone.
func TestDeletedSecret(t *testing.T) {
	for name, test := range map[string]struct {
		first   func(*cluster, *Rotator) *Rotator
		emptied bool
	}{
		"a replica that runs": {
			first: func(_ *cluster, running *Rotator) *Rotator { return running }},
		"a replica that starts, and the Secret is empty": {
			first: func(c *cluster, _ *Rotator) *Rotator { return c.rotator() }, emptied: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			if test.emptied {
				if _, err := c.secret.Create(t.Context(), &corev1.Secret{}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			running := []*Rotator{c.rotator(), c.rotator()}
			for _, r := range running {
				if r.Check(nil) == nil {
					t.Error("a replica is ready before its first round")
				}
				if err := until(t.Context(), r); err != nil || r.Check(nil) != nil {
					t.Fatal(err, r.Check(nil))
				}
			}
			c.step()
			before := c.secret.secret
			c.secret.secret = nil
			if test.emptied {
				emptied := before.DeepCopy()
				emptied.Data = nil
				if _, err := c.secret.write(emptied); err != nil {
					t.Fatal(err)
				}
			}
			if err := until(t.Context(), test.first(c, running[0])); err != nil {
				t.Fatal(err)
			}
			for range 70 {
				for i, r := range running {
					if err := c.trusted(r); err != nil {
						t.Fatalf("at %v, replica %d: %v", c.clock.Now(), i, err)
					}
					if err := until(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
				c.step()
			}
			after := c.secret.secret
			if n := bytes.Count(after.Data[caCert], []byte("BEGIN")); n != 1 ||
				bytes.Equal(after.Data[caCert], before.Data[caCert]) {
				t.Errorf("in the end the Secret has %d authorities", n)
			}
		})
	}
}

// forbidden are Secrets that the server may not create.
type forbidden struct{ secrets }

func (forbidden) Create(context.Context, *corev1.Secret,
	metav1.CreateOptions) (*corev1.Secret, error) {
	return nil, apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no rule"))
}

// TestMissingSecret: a server with the rights of the manifests says what brings the Secret back.
func TestMissingSecret(t *testing.T) {
	r := newCluster(t).rotator()
	r.secrets = forbidden{r.secrets}
	if err := until(t.Context(), r); err == nil ||
		!strings.Contains(err.Error(), "apply the manifests again") {
		t.Errorf("the round ends with %v", err)
	}
}

// TestForeignAuthority: what the APIServices trust when the server begins to make its certificate
// is trusted on, since older replicas may serve with it.
func TestForeignAuthority(t *testing.T) {
	c := newCluster(t)
	now := c.clock.Now()
	given, err := pki.NewAuthority("given", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := given.PEM()
	if err != nil {
		t.Fatal(err)
	}
	c.setBundles(base64.StdEncoding.EncodeToString(text))
	if err := until(t.Context(), c.rotator()); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.list() {
		if c.ours(s) && !bytes.Contains(bundle(s), text) {
			t.Errorf("%s has lost an authority", s.GetName())
		}
	}
}

// ours tells whether an APIService names our Service.
func (c *cluster) ours(s unstructured.Unstructured) bool {
	name, _, _ := unstructured.NestedString(s.Object, "spec", "service", "name")
	return name == "ours"
}

// setBundles changes our APIServices by hand.
func (c *cluster) setBundles(text string) {
	c.t.Helper()
	for _, s := range c.list() {
		if !c.ours(s) {
			continue
		}
		if err := unstructured.SetNestedField(s.Object, text, "spec", "caBundle"); err != nil {
			c.t.Fatal(err)
		}
		c.services.write(&s)
	}
}

// TestBadSecret: what cannot be read is never replaced, and the replica serves on.
func TestBadSecret(t *testing.T) {
	c := newCluster(t)
	r := c.rotator()
	if err := until(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	bad := c.secret.secret.DeepCopy()
	bad.Data[corev1.TLSPrivateKeyKey] = []byte("nonsense")
	if _, err := c.secret.write(bad); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), r); err == nil ||
		!strings.Contains(err.Error(), "mend secret/default/ours-certificate") {
		t.Errorf("the round ends with %v", err)
	}
	if err := errors.Join(c.trusted(r), r.Check(nil)); err != nil {
		t.Error(err)
	}
}

// heldUp are APIServices, before the first change of which other things happen.
type heldUp struct {
	dynamic.ResourceInterface
	happens func()
}

func (h *heldUp) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte,
	o metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if h.happens != nil {
		h.happens()
		h.happens = nil
	}
	return h.ResourceInterface.Patch(ctx, name, kind, patch, o, subresources...)
}

// TestSlowReplica: a replica that has read the Secret, and an APIService without the authority, is
// held up until there is a newer authority. It does not write the older one.
func TestSlowReplica(t *testing.T) {
	c := newCluster(t)
	fast, slow := c.rotator(), c.rotator()
	if err := until(t.Context(), fast); err != nil {
		t.Fatal(err)
	}
	c.setBundles("AAAA")
	slow.apiServices = &heldUp{slow.apiServices, func() {
		c.clock.Step(8 * time.Hour) // the authority is renewed
		for range 3 {
			if err := until(t.Context(), fast); err != nil {
				t.Fatal(err)
			}
			c.step()
		}
	}}
	if err := slow.round(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("the slow round ends with %v", err)
	}
	if err := c.trusted(fast); err != nil {
		t.Error(err)
	}
}
