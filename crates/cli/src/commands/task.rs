//! `task`: managed tasks.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use percale_api::tasks::{Activity, NewTask, Progress, Task, TaskItem, TaskSpec, Verification};
use percale_client::Client;
use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use percale_core::{ErrorCode, Timestamp};
use tokio::time::Instant;

use super::receipt::{self, ReceiptArgs, VerifyArgs};
use crate::address::show;
use crate::context::Context;
use crate::duration::{Deadline, Span};
use crate::failure::{Failure, Result};
use crate::output::{Output, count, duration, size, time};

/// For how long the site is asked to wait for the end of a task before it tells how far it is.
const LOOK: Duration = Duration::from_secs(2);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// Failed items that are shown; the rest is counted.
const SHOWN_ITEMS: usize = 20;

/// What a task of the fabric keeps to.
#[derive(Debug, Clone, Args)]
pub struct Terms {
    /// Within the fabric: when the task gives up, as a length of time or a time: 2h, 2026-12-01T00:00Z
    #[arg(long, value_name = "WHEN")]
    deadline: Option<Deadline>,
    /// Within the fabric: how copies are verified
    #[arg(long, value_name = "HOW", default_value = "frames")]
    verify: VerifyArg,
}

/// How copies are verified.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum VerifyArg {
    /// Every group is compared when it comes
    Frames,
    /// Besides, the whole is read back from the medium and compared before it counts
    Medium,
}

impl Terms {
    /// Returns how copies are verified.
    pub fn verify(&self) -> Verification {
        match self.verify {
            VerifyArg::Frames => Verification::Frames,
            VerifyArg::Medium => Verification::Medium,
        }
    }

    /// Returns when the task gives up.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.map(|deadline| deadline.time(Timestamp::now()))
    }
}

/// `percale task`
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks, the newest first
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show tasks
    Show(ShowArgs),
    /// Wait until tasks end
    Wait(WaitArgs),
    /// Stop tasks
    Cancel(IdsArgs),
    /// Begin ended tasks again
    Retry(IdsArgs),
    /// List the items of a task that did not succeed
    #[command(visible_alias = "errors")]
    Items(ShowItemsArgs),
    /// Fetch what a task has brought, signed by the site where it ran
    Receipt(ReceiptArgs),
    /// Check a receipt, and name what is wrong with it first
    VerifyReceipt(VerifyArgs),
}

/// `percale task list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale task list
  percale task list --state running
  percale task list --limit 5 --json
  percale -q task list --state failed | xargs percale task retry")]
pub struct ListArgs {
    /// Only tasks in this state
    #[arg(long, value_name = "STATE")]
    state: Option<StateArg>,
    /// Only tasks that run at this site; those of all sites if absent
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StateArg {
    Queued,
    Running,
    Succeeded,
    Partial,
    Failed,
    Cancelled,
}

impl StateArg {
    fn state(self) -> TaskState {
        match self {
            Self::Queued => TaskState::Queued,
            Self::Running => TaskState::Running,
            Self::Succeeded => TaskState::Succeeded,
            Self::Partial => TaskState::Partial,
            Self::Failed => TaskState::Failed,
            Self::Cancelled => TaskState::Cancelled,
        }
    }
}

/// `percale task show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale task show 0193a1b2-0000-7000-8000-000000000001
  percale task show --json 0193a1b2-0000-7000-8000-000000000001")]
pub struct ShowArgs {
    /// The ids
    #[arg(required = true)]
    ids: Vec<TaskId>,
}

/// `percale task items`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale task items 0193a1b2-0000-7000-8000-000000000001
  percale task items --json 0193a1b2-0000-7000-8000-000000000001 | jq -r .path")]
pub struct ShowItemsArgs {
    /// The id
    id: TaskId,
}

/// `percale task wait`
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code tells how it ended: 0 succeeded, 6 partial, 10 still going on when the time was over, else as it failed.

Examples:
  percale task wait 0193a1b2-0000-7000-8000-000000000001
  percale task wait --timeout 10m 0193a1b2-0000-7000-8000-000000000001")]
pub struct WaitArgs {
    /// The ids
    #[arg(required = true)]
    ids: Vec<TaskId>,
    /// Stop waiting after this time
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
}

/// `percale task cancel`, `percale task retry`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale task cancel 0193a1b2-0000-7000-8000-000000000001
  percale task retry 0193a1b2-0000-7000-8000-000000000001")]
pub struct IdsArgs {
    /// The ids
    #[arg(required = true)]
    ids: Vec<TaskId>,
}

/// Runs a command of the group.
pub async fn run(command: TaskCommand, context: &Context) -> Result {
    // Perhaps without a site.
    let command = match command {
        TaskCommand::VerifyReceipt(args) => {
            return context.interruptible(receipt::verify(args, context)).await?;
        }
        command => command,
    };
    let client = context.client()?;
    let output = context.output;
    match command {
        TaskCommand::VerifyReceipt(_) => Ok(()),
        TaskCommand::Receipt(args) => context.interruptible(receipt::fetch(args, &client, output)).await?,
        TaskCommand::List(args) => {
            let tasks = context.interruptible(list(&client, &args, output)).await??;
            output.list(
                &tasks,
                &["id", "what", "state", "done#", "failed#", "bytes#", "created"],
                |task| task.id.to_string(),
                |task| {
                    let progress = &task.progress;
                    vec![
                        task.id.to_string(),
                        task.label.clone().unwrap_or_else(|| describe(&task.spec)),
                        task.state.to_string(),
                        format!("{}/{}", progress.items_done, progress.items_total),
                        progress.items_failed.to_string(),
                        size(progress.bytes_done),
                        time(task.created),
                    ]
                },
            )
        }
        TaskCommand::Show(args) => {
            for id in args.ids {
                let task = context.interruptible(client.task(id)).await??;
                output.one(&task, |task| task.id.to_string(), show_task)?;
            }
            Ok(())
        }
        TaskCommand::Items(args) => {
            let items = context.interruptible(client.all_task_items(args.id)).await??;
            output.list(&items, &["path", "code", "what"], |item| item.path.clone(), item_row)
        }
        TaskCommand::Wait(args) => {
            let until = args.timeout.map(|span| Instant::now() + span.0);
            let mut result = Ok(());
            for id in args.ids {
                let task = context.interruptible(client.task(id)).await??;
                let task = attach(context, &client, task, "waiting", until).await?;
                if output.json {
                    output.document(&task)?;
                }
                let ended = outcome(context, &client, &task).await;
                result = result.and(ended);
            }
            result
        }
        TaskCommand::Cancel(args) => {
            for id in args.ids {
                let task = context.interruptible(client.cancel_task(id)).await??;
                output.one(
                    &task,
                    |task| task.id.to_string(),
                    |task| format!("{} {}", task.id, task.state),
                )?;
            }
            Ok(())
        }
        TaskCommand::Retry(args) => {
            for id in args.ids {
                let task = context.interruptible(client.retry_task(id)).await??;
                output.one(
                    &task,
                    |task| task.id.to_string(),
                    |task| format!("{} {}", task.id, task.state),
                )?;
                output.next(format!("percale task wait {id}"));
            }
            Ok(())
        }
    }
}

/// Lists the tasks of one site, or those of all sites that answer, the newest first.
async fn list(client: &Client, args: &ListArgs, output: Output) -> Result<Vec<Task>> {
    if let Some(site) = &args.site {
        return list_at(client, Some(site), args).await;
    }
    let mut tasks = list_at(client, None, args).await?;
    for site in client.all_sites().await?.into_iter().filter(|site| !site.is_self) {
        match list_at(client, Some(&site.member.name), args).await {
            Ok(more) => tasks.extend(more),
            Err(failure) => output.talk(format!("the tasks at {} are missing: {failure}", site.member.name)),
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.created));
    tasks.truncate(args.limit);
    Ok(tasks)
}

async fn list_at(client: &Client, site: Option<&str>, args: &ListArgs) -> Result<Vec<Task>> {
    let mut tasks = Vec::new();
    let mut cursor = None;
    loop {
        let state = args.state.map(StateArg::state);
        let page = client.list_tasks(site, state, cursor.as_deref()).await?;
        tasks.extend(page.items);
        cursor = page.next;
        if cursor.is_none() || tasks.len() >= args.limit {
            tasks.truncate(args.limit);
            return Ok(tasks);
        }
    }
}

fn describe(spec: &TaskSpec) -> String {
    match spec {
        TaskSpec::Verify { path, repair: false, unverified: true } => {
            format!("verify what of {} was not hashed yet", show(path))
        }
        TaskSpec::Verify { path, repair: false, .. } => format!("verify {}", show(path)),
        TaskSpec::Verify { path, repair: true, .. } => format!("verify and repair {}", show(path)),
        TaskSpec::Delete { path } => format!("delete {}", show(path)),
        TaskSpec::Copy { from, to, at } => format!("copy {} -> {}{}", show(from), show(to), at_site(at)),
        TaskSpec::Sync { from, to, at, .. } => {
            format!("sync {} -> {}{}", show(from), show(to), at_site(at))
        }
        TaskSpec::Replicate { path, to, .. } => format!("replicate {} to {to}", show(path)),
        TaskSpec::Evict { path, from } => format!("evict {} from {from}", show(path)),
        TaskSpec::Import(import) => format!("import {} into {}", import.source, show(&import.to)),
        TaskSpec::Extract { path } => format!("read the headers of {}", show(path)),
        TaskSpec::Empty { store } => format!("empty the store {store}"),
        _ => "other work".to_owned(),
    }
}

/// Says what became of items.
fn counts(progress: &Progress) -> String {
    let counts: Vec<String> = progress.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    counts.join(", ")
}

fn at_site(site: &Option<String>) -> String {
    site.as_ref().map(|site| format!(" at {site}")).unwrap_or_default()
}

fn show_task(task: &Task) -> String {
    let progress = &task.progress;
    let mut lines = vec![
        format!("task      {}", task.id),
        format!("what      {}", describe(&task.spec)),
        format!("state     {}", task.state),
        format!("owner     {}", task.owner),
        format!(
            "items     {} of {} done, {} failed",
            progress.items_done, progress.items_total, progress.items_failed
        ),
        match progress.bytes_total {
            Some(total) => format!("bytes     {} of {}", size(progress.bytes_done), size(total)),
            None => format!("bytes     {}", size(progress.bytes_done)),
        },
        format!("attempt   {}", task.attempt),
        format!("created   {} UTC", time(task.created)),
        format!("changed   {} UTC", time(task.changed)),
    ];
    if !progress.counts.is_empty() {
        lines.push(format!("of these  {}", counts(progress)));
    }
    if let Some(activity) = &task.activity {
        lines.extend(show_activity(task.state, activity));
    }
    if task.verify == Verification::Medium {
        lines.push("verify    copies are read back from the medium".to_owned());
    }
    lines.extend(task.limit.map(|limit| format!("limit     {limit}")));
    lines.extend(task.label.as_ref().map(|label| format!("label     {label}")));
    lines.extend(task.deadline.map(|deadline| format!("deadline  {} UTC", time(deadline))));
    lines.extend(
        task.problem.as_ref().map(|problem| format!("problem   {}: {}", problem.code, problem.detail)),
    );
    lines.join("\n")
}

/// Says what a task is busy with; of one that does not run, what it was in all.
fn show_activity(state: TaskState, activity: &Activity) -> Vec<String> {
    let average = format!("{}/s on average", size(activity.average));
    let mut lines = Vec::new();
    let reason = activity.streams_reason.as_deref();
    if state == TaskState::Running {
        let left =
            activity.seconds_left.map(|left| format!(", {} left", duration(Duration::from_secs(left))));
        lines.push(format!("rate      {}/s, {average}{}", size(activity.rate), left.unwrap_or_default()));
        let reason = reason.map(|reason| format!("; {reason}")).unwrap_or_default();
        lines.push(format!("streams   {} open{reason}", activity.streams));
    } else {
        lines.push(format!("rate      {average}"));
        lines.extend(reason.map(|reason| format!("streams   {reason}")));
    }
    if let Some(transport) = &activity.transport {
        let reason = activity.transport_reason.as_ref().map(|reason| format!("; {reason}"));
        lines.push(format!("transport {}{}", words_of_transport(transport), reason.unwrap_or_default()));
    }
    if let Some(bottleneck) = &activity.bottleneck {
        let reason = activity.reason.as_deref().unwrap_or("the site does not say why");
        lines.push(format!("held up   by {}: {reason}", spoken(bottleneck)));
    }
    lines
}

/// Returns how bytes travel as people say it.
pub(super) fn words_of_transport(transport: &str) -> &str {
    match transport {
        "tls" => "encrypted, TLS 1.3",
        "integrity_only" => "integrity only: not encrypted, every byte authenticated",
        "mixed" => "in part encrypted",
        other => other,
    }
}

fn item_row(item: &TaskItem) -> Vec<String> {
    vec![item.path.clone(), item.code.clone(), item.detail.clone()]
}

/// Says how far a task is, how fast, and what holds it up.
fn moving(task: &Task) -> String {
    let done = size(task.progress.bytes_done);
    let Some(activity) = task.activity.as_ref().filter(|_| task.state == TaskState::Running) else {
        return format!("{done}  {}", task.state);
    };
    let left = activity.seconds_left.map(|left| format!("  {} left", duration(Duration::from_secs(left))));
    let what = activity.bottleneck.as_ref().map(|what| format!("  held up by {}", spoken(what)));
    format!("{done}  {}/s{}{}", size(activity.rate), left.unwrap_or_default(), what.unwrap_or_default())
}

/// Returns a name of the interface as people say it.
fn spoken(bottleneck: &str) -> String {
    bottleneck.replace('_', " ")
}

/// Submits tasks, which go on side by side, and watches one after the other.
pub async fn run_all(
    context: &Context,
    client: &Client,
    orders: Vec<NewTask>,
    verb: &'static str,
    detach: bool,
) -> Result {
    let mut tasks: Vec<Task> = Vec::with_capacity(orders.len());
    for order in orders {
        let submitted = context.interruptible(client.submit(&order)).await;
        let task =
            submitted.and_then(|submitted| Ok(submitted?)).map_err(|failure| go_on(failure, &tasks))?;
        if detach {
            context.output.one(&task, |task| task.id.to_string(), |task| task.id.to_string())?;
        }
        tasks.push(task);
    }
    let mut result = Ok(());
    for (at, task) in tasks.iter().enumerate().filter(|_| !detach) {
        let ended = attach(context, client, task.clone(), verb, None).await;
        let ended = ended.map_err(|failure| go_on(failure, tasks.get(at + 1..).unwrap_or_default()))?;
        if context.output.json {
            context.output.document(&ended)?;
        }
        result = result.and(outcome(context, client, &ended).await);
    }
    result
}

/// Names tasks that go on though the command does not.
fn go_on(failure: Failure, tasks: &[Task]) -> Failure {
    if tasks.is_empty() {
        return failure;
    }
    let ids: Vec<String> = tasks.iter().map(|task| task.id.to_string()).collect();
    let hint = format!("{} These go on, too: {}.", failure.hint(), ids.join(", "));
    failure.with_hint(hint.trim_start())
}

/// Watches a task until it ends. Ctrl-C stops the watching, not the task.
pub async fn attach(
    context: &Context,
    client: &Client,
    mut task: Task,
    verb: &'static str,
    until: Option<Instant>,
) -> Result<Task> {
    let bar = (context.output.is_interactive() && !context.output.quiet && !context.output.json).then(|| {
        let bar = ProgressBar::new(0);
        let template = "{prefix} {bar:24} {pos}/{len} items  {msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        bar.set_prefix(verb);
        bar
    });
    let mut told = Instant::now();
    while !task.state.is_final() {
        if let Some(bar) = &bar {
            bar.set_length(task.progress.items_total);
            bar.set_position(task.progress.items_done + task.progress.items_failed);
            bar.set_message(moving(&task));
        } else if told.elapsed() >= LINE_EVERY {
            told = Instant::now();
            let progress = &task.progress;
            context.output.talk(format!(
                "{verb}: task {}: {} of {} done, {} failed, {}",
                task.id,
                progress.items_done,
                count(progress.items_total, "item"),
                progress.items_failed,
                moving(&task)
            ));
        }
        let (id, asked) = (task.id, Instant::now());
        // The site answers at once when the task has ended. Until then it is asked again, to show how far it is.
        let looked = async {
            let seen = client.task_ended(id, LOOK).await?;
            if !seen.state.is_final() {
                tokio::time::sleep_until(asked + LOOK).await;
            }
            Ok::<_, Failure>(seen)
        };
        let late = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        task = tokio::select! {
            seen = looked => seen.map_err(|failure| {
                let hint = format!("Task {id} goes on; `percale task wait {id}` attaches again. {}", failure.hint());
                failure.with_hint(hint.trim_end())
            })?,
            () = late => {
                let message = format!("task {id} is still {}", task.state);
                return Err(Failure::new(ErrorCode::WaitTimeout, message));
            }
            () = context.cancel.cancelled() => {
                drop(bar);
                let message = format!("detached; task {id} goes on at the site");
                let hint = format!("`percale task wait {id}` attaches again, `percale task cancel {id}` stops it.");
                return Err(Failure::new(ErrorCode::Interrupted, message).with_hint(hint));
            }
        };
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(task)
}

/// Says how a task ended; a failure unless it succeeded.
pub async fn outcome(context: &Context, client: &Client, task: &Task) -> Result {
    let progress = &task.progress;
    let took = duration(task.changed.since(task.created).max(Duration::from_millis(1)));
    let done = match progress.counts.is_empty() {
        true => format!("{}, {} in {took}", count(progress.items_done, "item"), size(progress.bytes_done)),
        false => format!("{} ({}) in {took}", count(progress.items_done, "item"), counts(progress)),
    };
    match task.state {
        TaskState::Succeeded => {
            if !context.output.json {
                context.output.talk(format!("{}: {done}", describe(&task.spec)));
            }
            Ok(())
        }
        TaskState::Partial => {
            print_items(context, client, task).await?;
            let message = format!(
                "{}: {done}, but {} failed",
                describe(&task.spec),
                count(progress.items_failed, "item")
            );
            let hint = format!("`percale task items {}` lists them all.", task.id);
            Err(Failure::new(ErrorCode::Partial, message).with_hint(hint))
        }
        state => {
            print_items(context, client, task).await?;
            let (code, why) = match &task.problem {
                Some(problem) => (problem.error_code(), problem.detail.clone()),
                None if state == TaskState::Cancelled => {
                    (ErrorCode::Cancelled, "it was cancelled".to_owned())
                }
                None => (ErrorCode::Internal, format!("it is {state}, and the site does not say why")),
            };
            let failure = Failure::new(code, format!("{}: {why}", describe(&task.spec)));
            Err(failure.with_hint(format!(
                "`percale task show {0}` and `percale task items {0}` say more.",
                task.id
            )))
        }
    }
}

/// Shows the first items that did not succeed.
pub async fn print_items(context: &Context, client: &Client, task: &Task) -> Result<Vec<TaskItem>> {
    let items =
        if task.progress.items_failed > 0 { client.all_task_items(task.id).await? } else { Vec::new() };
    if !context.output.json {
        for item in items.iter().take(SHOWN_ITEMS) {
            let text = format!("{}: {} ({})", item.path, item.detail, item.code);
            context.output.talk(format!("{} {text}", context.output.paint("31", "failed:")));
        }
        if items.len() > SHOWN_ITEMS {
            context.output.talk(format!("… and {} more", items.len() - SHOWN_ITEMS));
        }
    }
    Ok(items)
}
