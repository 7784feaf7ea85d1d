// Drives the harnesses' TypeScript packages for our tests and benchmarks: one JSON command a line on stdin, one
// JSON answer a line on stdout. `node peer.mjs PROJECT`, where PROJECT/node_modules holds the packages.
// An answer is {ok: value} or {error: text}; a refusal is an answer and no failure of the driver.

import { existsSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

// The packages are ES modules in somebody else's folder: resolve there, import by URL.
const require = createRequire(join(process.argv[2], 'peer.mjs'))
const load = (name) => import(pathToFileURL(require.resolve(`@deepseek-ai/${name}`)).href)

const { Context } = await load('cordis')
const { SessionStore, Session, SessionId, interruptedTurnClosers, packChunkRuns } = await load('dsh-session')
const { default: Persistence } = await load('dsh-session-persistence-jsonl')

/** Runs `work` with a mounted JSONL persistence and drains it afterwards. */
async function withStore({ root, compression, packChunks = true }, work) {
  const ctx = new Context()
  await ctx.plugin(SessionStore)
  const fiber = ctx.plugin(Persistence, { root, compression, packChunks })
  await fiber
  try {
    return await work(ctx)
  } finally {
    await fiber.dispose()
  }
}

function view({ meta, events }) {
  const session = Session.create(SessionId(meta.id), events, meta)
  return { header: meta, events, messages: session.deriveMessages(), nodes: [...session.surface.nodes] }
}

function appendAll(session, entries) {
  for (const { type, data, surfaceOp, sourceEventSeqs, ignorable } of entries) {
    const options = { surfaceOp, sourceEventSeqs, ignorable }
    for (const key of Object.keys(options)) if (options[key] === undefined) delete options[key]
    session.append(type, data, Object.keys(options).length ? options : undefined)
  }
}

/** The peak of this process's memory; maxRSS starts with the size of the process that started this one. */
function peakBytes() {
  const status = '/proc/self/status'
  if (!existsSync(status)) return process.resourceUsage().maxRSS * 1024
  return Number(/VmHWM:\s*(\d+)/.exec(readFileSync(status, 'utf8'))[1]) * 1024
}

const describe = (error) => `${error?.name ?? 'Error'}: ${error?.message ?? error}`

function refusal(work) {
  try {
    work()
    return null
  } catch (error) {
    return describe(error)
  }
}

const commands = {
  version: () => process.versions.node,

  /** The balanced log of a session; `repair` makes the repair durable (their `load`, else `inspect`). */
  read: (command) =>
    withStore(command, async ({ sessionPersistence }) =>
      view(await sessionPersistence[command.repair ? 'load' : 'inspect'](SessionId(command.id))),
    ),

  list: (command) => withStore(command, ({ sessionPersistence }) => sessionPersistence.list()),

  /** Stores whole events, batch by batch, times and seqs included. */
  write: (command) =>
    withStore(command, async ({ sessionPersistence }) => {
      if (command.header) await sessionPersistence.create(command.header)
      for (const batch of command.batches) await sessionPersistence.append(SessionId(command.id), batch)
      return null
    }),

  /** Resumes a session as an agent does, appends, flushes, and lets go of it. */
  resume: (command) =>
    withStore(command, async ({ sessions, sessionPersistence }) => {
      const preparation = await sessionPersistence.prepare(SessionId(command.id))
      const { session } = preparation
      const detach = sessions.enter(session)
      sessions.announce(session)
      preparation[Symbol.dispose]()
      appendAll(session, command.entries)
      await sessions.flush(session)
      detach()
      return { seq: session.seq, messages: session.deriveMessages() }
    }),

  /** For each seed what a detached session says to it: null, or why it refuses. */
  seeds: ({ seeds }) => seeds.map((events) => refusal(() => Session.create(SessionId('s'), events, undefined))),

  /** For each stored session what an inspection says to it: its number of events, or why it refuses. */
  inspects: (command) =>
    withStore(command, async ({ sessionPersistence }) => {
      const answers = []
      for (const id of command.ids) {
        answers.push(await sessionPersistence.inspect(SessionId(id)).then(({ events }) => events.length, describe))
      }
      return answers
    }),

  closers: ({ logs }) => logs.map(interruptedTurnClosers),

  /** The stored lines of each batch. */
  pack: ({ batches }) => batches.map((events) => packChunkRuns(events).map((record) => JSON.stringify(record))),

  /** How long `inspect` takes, without deriving anything, and the peak of the process's memory. */
  time: (command) =>
    withStore(command, async ({ sessionPersistence }) => {
      const start = process.hrtime.bigint()
      const { events } = await sessionPersistence.inspect(SessionId(command.id))
      const seconds = Number(process.hrtime.bigint() - start) / 1e9
      return { seconds, events: events.length, peakBytes: peakBytes() }
    }),
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  let answer
  try {
    const command = JSON.parse(line)
    answer = { ok: (await commands[command.op](command)) ?? null }
  } catch (error) {
    answer = { error: describe(error) }
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`)
}
