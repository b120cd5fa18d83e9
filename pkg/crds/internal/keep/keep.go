//go:build keep

// Package keep requires modules that nothing imports.
package keep

// The program k8s.io/kubernetes requires the modules that are published with it at the version
// v0.0.0, which does not exist, and replaces them by its own directories. Nobody else sees these
// replacements, so that whoever requires k8s.io/kubernetes has to require each of them. Here is one
// package of each, since go mod tidy drops what nothing imports.
import (
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/apiserver/pkg/features"
	_ "k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/rest"
	_ "k8s.io/cloud-provider/api"
	_ "k8s.io/cluster-bootstrap/token/api"
	_ "k8s.io/code-generator/pkg/util"
	_ "k8s.io/component-base/version"
	_ "k8s.io/component-helpers/auth/rbac/validation"
	_ "k8s.io/controller-manager/config"
	_ "k8s.io/cri-api/pkg/apis"
	_ "k8s.io/cri-client/pkg/util"
	_ "k8s.io/cri-streaming/pkg/streaming"
	_ "k8s.io/csi-translation-lib"
	_ "k8s.io/dynamic-resource-allocation/api"
	_ "k8s.io/endpointslice/util"
	_ "k8s.io/externaljwt/apis/v1"
	_ "k8s.io/kms/apis/v2"
	_ "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	_ "k8s.io/kube-controller-manager/config/v1alpha1"
	_ "k8s.io/kube-proxy/config/v1alpha1"
	_ "k8s.io/kube-scheduler/config/v1"
	_ "k8s.io/kubectl/pkg/util/term"
	_ "k8s.io/kubelet/config/v1"
	_ "k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/metrics/pkg/apis/metrics/v1"
	_ "k8s.io/mount-utils"
	_ "k8s.io/pod-security-admission/api"
	_ "k8s.io/sample-apiserver/pkg/apis/wardle"
	_ "k8s.io/streaming/pkg/httpstream"
)
